"""What finished runs show: comparisons, analyses, certificates, and the tables and figures of papers."""
