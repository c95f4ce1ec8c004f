"""Networks: client models, embedding networks, hypernetworks."""
