// What leaves this browser: every request is written down here, by a wrapper around `fetch`.

export const requests = [];
export const resources = []; // what the browser itself says that it loaded, by whatever way
const listeners = [];

export const onChange = (listener) => listeners.push(listener);
const changed = () => listeners.forEach((listener) => listener());

const send = globalThis.fetch;

globalThis.fetch = async (resource, options = {}) => {
  const body = options.body ?? "";
  const sent = typeof body === "string" ? new TextEncoder().encode(body).length : body.byteLength;
  const { pathname, origin } = new URL(resource.url ?? resource, location.href);
  const line = { method: options.method ?? "GET", path: pathname, origin, sent, body, status: "…" };
  requests.push(line);
  changed();
  try {
    const response = await send(resource, options);
    line.status = response.status;
    return response;
  } catch (error) {
    line.status = "failed";
    throw error;
  } finally {
    changed();
  }
};

new PerformanceObserver((list) => {
  resources.push(...list.getEntries().map(({ name, initiatorType }) => ({ name, initiatorType })));
  changed();
}).observe({ type: "resource", buffered: true });
