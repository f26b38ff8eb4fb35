// Requests to the server. Paths are relative, so that a proxy may serve the page below a prefix.

// Kinds of errors, by what the user can do about them: "unreachable" no response, "broken" the
// connection ended in the middle, "key" 401, "context" the conversation is too long, "busy" 503
// with retry_s, "refused" any other unsuccessful status, "failed" an error in the stream.
export class ServerError extends Error {
    constructor(kind, message, retryS = 0) {
        super(message);
        this.kind = kind;
        this.retryS = retryS;
    }
}

function headersOf(key) {
    return key ? {Authorization: `Bearer ${key}`} : {};
}

async function errorOf(response) {
    let text = `${response.status} ${response.statusText}`.trim();
    let code = "";
    try {
        const {error} = JSON.parse(await response.text());
        text = typeof error === "string" ? error : error.message ?? text;
        code = error.code ?? error.type ?? "";
    } catch {
        // The body is not JSON, perhaps a proxy's page: uses the status.
    }
    if (response.status === 401 || response.status === 403) {
        return new ServerError("key", text);
    }
    if (code === "context_length_exceeded") {
        return new ServerError("context", text);
    }
    if (response.status === 503 || response.status === 429) {
        const after = Number(response.headers.get("Retry-After"));
        return new ServerError("busy", text, after > 0 ? Math.min(after, 120) : 2);
    }
    return new ServerError("refused", text);
}

// Returns a successful response.
async function request(path, {key, ...options}) {
    let response;
    try {
        response = await fetch(path, {cache: "no-store", ...options,
                                      headers: {...options.headers, ...headersOf(key)}});
    } catch (error) {
        throw error.name === "AbortError" ? error : new ServerError("unreachable", error.message);
    }
    if (!response.ok) {
        throw await errorOf(response);
    }
    return response;
}

function post(path, body, {key, signal}) {
    return request(path, {key, signal, method: "POST", body: JSON.stringify(body),
                          headers: {"Content-Type": "application/json"}});
}

export async function getJson(path, {key = "", signal} = {}) {
    return (await request(path, {key, signal})).json();
}

export async function postJson(path, body, {key = "", signal} = {}) {
    return (await post(path, body, {key, signal})).json();
}

// Splits a stream of server-sent events, in chunks of any size, into {data} and {comment}.
export class EventCutter {
    #rest = "";
    #data = [];

    *push(text) {
        this.#rest += text;
        // A CR at the very end may be half of a CR LF.
        const end = this.#rest.endsWith("\r") ? this.#rest.length - 1 : this.#rest.length;
        const lines = this.#rest.slice(0, end).split(/\r\n|\n|\r/);
        this.#rest = lines.pop() + this.#rest.slice(end);
        for (const line of lines) {
            if (line === "") {
                if (this.#data.length) {
                    yield {data: this.#data.join("\n")};
                }
                this.#data = [];
            } else if (line.startsWith(":")) {
                yield {comment: line.slice(1).trim()};
            } else if (line.startsWith("data:")) {
                this.#data.push(line.slice(line[5] === " " ? 6 : 5));
            }
        }
    }
}

async function* eventsOf(response) {
    const reader = response.body.getReader();
    const decoder = new TextDecoder();
    const cutter = new EventCutter();
    try {
        for (;;) {
            const {done, value} = await reader.read();
            if (done) {
                return;
            }
            yield* cutter.push(decoder.decode(value, {stream: true}));
        }
    } catch (error) {
        throw error.name === "AbortError" ? error : new ServerError("broken", error.message);
    } finally {
        reader.cancel().catch(() => {});
    }
}

function* partsOf(chunk) {
    if (chunk.error) {
        const {code, message} = chunk.error;
        throw new ServerError(code === "context_length_exceeded" ? "context" : "failed",
                              message ?? "The server reported an error without a message.");
    }
    if (chunk.prompt_progress) {
        const {processed = 0, total = 0} = chunk.prompt_progress;
        yield {kind: "progress", processed, total};
    }
    const choice = chunk.choices?.[0];
    const delta = choice?.delta ?? {};
    const reasoning = delta.reasoning_content ?? delta.reasoning ?? "";
    if (reasoning || delta.content || delta.tool_calls) {
        yield {kind: "delta", reasoning, content: delta.content ?? "",
               toolCalls: delta.tool_calls ?? []};
    }
    if (choice?.finish_reason) {
        yield {kind: "finish", reason: choice.finish_reason};
    }
    if (chunk.usage) {
        yield {kind: "usage", usage: chunk.usage, model: chunk.model, timings: chunk.timings};
    }
}

// Yields the parts of an answer: {kind: "open"} when the request is accepted, then "alive",
// "progress", "delta", "finish", "usage". Returns at [DONE]. Throws a ServerError, or an AbortError
// when the signal aborts it.
export async function* chatStream(body, {key, signal}) {
    const response = await post("v1/chat/completions", {
        ...body, stream: true, stream_options: {include_usage: true}, return_progress: true,
    }, {key, signal});
    yield {kind: "open"};
    for await (const event of eventsOf(response)) {
        if (event.comment !== undefined) {
            const progress = /(\d+)\s*\/\s*(\d+)/.exec(event.comment);
            yield progress ? {kind: "progress", processed: +progress[1], total: +progress[2]}
                           : {kind: "alive"};
            continue;
        }
        if (event.data === "[DONE]") {
            return;
        }
        let chunk;
        try {
            chunk = JSON.parse(event.data);
        } catch {
            throw new ServerError("failed", "The server sent a line that is not JSON.");
        }
        yield* partsOf(chunk);
    }
    throw new ServerError("broken", "The stream ended before the answer was complete.");
}
