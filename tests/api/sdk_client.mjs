// What npm's openai, @anthropic-ai/sdk and ai see of the server at FLASHMOE_URL; run by
// sdk_test.py.
import assert from "node:assert/strict";
import test from "node:test";
import Anthropic from "@anthropic-ai/sdk";
import OpenAI from "openai";
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, jsonSchema, Output, stepCountIs, streamText, tool } from "ai";

const url = process.env.FLASHMOE_URL;
const text = "Hello there, world.";
const schema = { type: "object", properties: { city: { type: "string" },
                                               days: { type: "integer" } } };
const names = ["get_weather", "get_time"];
const says = (content) => [{ role: "user", content }];

const openai = new OpenAI({ baseURL: `${url}/v1`, apiKey: "sesame", maxRetries: 0 });
const anthropic = new Anthropic({ baseURL: url, apiKey: "sesame", maxRetries: 0 });
const openaiTools = names.map((name) => ({ type: "function",
                                           function: { name, parameters: schema } }));

test("openai: text, usage, stream", async () => {
    const answer = await openai.chat.completions.create({ model: "any", messages: says("A") });
    assert.equal(answer.choices[0].message.content, text);
    assert.equal(answer.usage.completion_tokens, 4);
    let joined = "", usage = null;
    const stream = await openai.chat.completions.create({
        model: "any", messages: says("A"), stream: true, stream_options: { include_usage: true } });
    for await (const chunk of stream) {
        joined += chunk.choices[0]?.delta?.content ?? "";
        usage = chunk.usage ?? usage;
    }
    assert.equal(joined, text);
    assert.equal(usage.completion_tokens, 4);
});

test("openai: tools, and their results", async () => {
    const runner = openai.chat.completions.stream({ model: "any", messages: says("U"),
                                                    tools: openaiTools });
    const { message, finish_reason: reason } = (await runner.finalChatCompletion()).choices[0];
    assert.equal(reason, "tool_calls");
    assert.deepEqual(message.tool_calls.map((c) => c.function.name), names);
    assert.deepEqual(JSON.parse(message.tool_calls[0].function.arguments), { city: "Rome" });
    const results = message.tool_calls.map((c) => ({ role: "tool", tool_call_id: c.id,
                                                     content: "ok A" }));
    const again = await openai.chat.completions.create({
        model: "any", messages: [...says("U"), message, ...results], tools: openaiTools });
    assert.equal(again.choices[0].message.content, text);
});

test("openai: responses", async () => {
    const answer = await openai.responses.create({ model: "any", input: "A" });
    assert.equal(answer.output_text, text);
    const stream = openai.responses.stream({
        model: "any", input: "U",
        tools: names.map((name) => ({ type: "function", name, parameters: schema,
                                      strict: false })) });
    const final = await stream.finalResponse();
    assert.deepEqual(final.output.map((item) => item.type),
                     ["reasoning", "message", "function_call", "function_call"]);
});

test("openai: errors and cancelling", async () => {
    await assert.rejects(openai.chat.completions.create({ model: "any", messages: says("A"),
                                                          temperature: 50 }),
                         (error) => error.status === 400 && error.param === "temperature");
    const stream = await openai.chat.completions.create({ model: "any", messages: says("L"),
                                                          stream: true });
    let n = 0;
    for await (const chunk of stream) {
        assert.equal(chunk.object, "chat.completion.chunk");
        if (++n === 5)
            break;
    }
    const slow = new OpenAI({ baseURL: `${url}/v1`, apiKey: "sesame", maxRetries: 0, timeout: 30 });
    await assert.rejects(slow.chat.completions.create({ model: "any", messages: says("L"), n: 64 }),
                         OpenAI.APIConnectionTimeoutError);
});

test("anthropic: text, blocks, tools", async () => {
    const answer = await anthropic.messages.create({ model: "any", max_tokens: 50,
                                                     messages: says("A") });
    assert.equal(answer.content[0].text, text);
    const tools = names.map((name) => ({ name, input_schema: schema }));
    const final = await anthropic.messages.stream({ model: "any", max_tokens: 200, tools,
                                                    messages: says("U") }).finalMessage();
    assert.deepEqual(final.content.map((b) => b.type), ["thinking", "text", "tool_use",
                                                        "tool_use"]);
    assert.deepEqual(final.content[2].input, { city: "Rome" });
    assert.equal(final.stop_reason, "tool_use");
    const results = final.content.filter((b) => b.type === "tool_use").map((b) => ({
        type: "tool_result", tool_use_id: b.id, content: "ok A" }));
    const again = await anthropic.messages.create({
        model: "any", max_tokens: 50, tools,
        messages: [...says("U"), { role: "assistant", content: final.content },
                   { role: "user", content: results }] });
    assert.equal(again.content[0].text, text);
    assert.ok(again.usage.cache_read_input_tokens > 20);
    await assert.rejects(anthropic.messages.create({ model: "any", max_tokens: 5, temperature: 50,
                                                     messages: says("A") }),
                         Anthropic.BadRequestError);
});

test("anthropic: a tool's picture", async () => {
    const image = { type: "image", source: { type: "base64", media_type: "image/png",
                                             data: "iVBORw0KGgo=" } };
    const tools = names.map((name) => ({ name, input_schema: schema }));
    const first = await anthropic.messages.create({ model: "any", max_tokens: 50, tools,
                                                    messages: says("T") });
    const again = await anthropic.messages.create({
        model: "any", max_tokens: 50, tools,
        messages: [...says("T"), { role: "assistant", content: first.content },
                   { role: "user", content: [{
                       type: "tool_result", tool_use_id: first.content[0].id,
                       content: [image, { type: "text", text: "so A" }] }] }] });
    assert.equal(again.content[0].text, text);
});

const providers = {
    "openai-compatible": createOpenAICompatible({ name: "flashmoe", baseURL: `${url}/v1`,
                                                  supportsStructuredOutputs: true,
                                                  apiKey: "sesame" })("any"),
    anthropic: createAnthropic({ baseURL: `${url}/v1`, apiKey: "sesame" })("any"),
};
for (const [name, model] of Object.entries(providers))
    test(`ai with ${name}`, async () => {
        const answer = await generateText({ model, prompt: "A", maxOutputTokens: 50 });
        assert.equal(answer.text, text);
        const stream = streamText({ model, prompt: "R", maxOutputTokens: 50 });
        assert.equal(await stream.text, "Forty-two.");
        assert.equal(await stream.reasoningText, "Let me think.");
        const tools = Object.fromEntries(names.map((key) => [key, tool({
            inputSchema: jsonSchema(schema), execute: async () => "sunny A" })]));
        const steps = await generateText({ model, prompt: "T", tools, maxOutputTokens: 50,
                                           stopWhen: stepCountIs(3) });
        assert.equal(steps.steps.length, 2);
        assert.deepEqual(steps.steps[0].toolCalls[0].input, { city: "Paris", days: 3 });
        const output = Output.object({ schema: jsonSchema({
            ...schema, required: ["city", "days"], additionalProperties: false }) });
        const looks = tool({ inputSchema: jsonSchema(schema), execute: async () => "sunny O" });
        const typed = await generateText({ model, prompt: "P", tools: { get_weather: looks },
                                           output, maxOutputTokens: 50,
                                           providerOptions: { anthropic: {
                                               structuredOutputMode: "outputFormat" } },
                                           stopWhen: stepCountIs(3) });
        assert.deepEqual(typed.steps[0].toolCalls[0].input, { city: "Kyiv", days: 3 });
        assert.deepEqual(typed.output, { city: "Oslo", days: 2 });
    });
