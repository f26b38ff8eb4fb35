// Checks what npm's ollama sees of the server at FLASHMOE_URL; run by clients_test.py.
import assert from 'node:assert/strict'
import {test} from 'node:test'
import {Ollama} from 'ollama'

const host = process.env.FLASHMOE_URL
const client = new Ollama({host, headers: {Authorization: 'Bearer sesame'}})
const text = 'Hello there, world.'
const tools = ['get_weather', 'get_time'].map(name => ({
  type: 'function', function: {name, description: name, parameters: {
    type: 'object', properties: {city: {type: 'string'}, days: {type: 'integer'}}}}}))
const says = content => [{role: 'user', content}]

test('lists and shows the model', async () => {
  assert.equal((await client.list()).models.length, 1)
  assert.equal((await client.ps()).models.length, 1)
  assert.match((await client.version()).version, /^\d+\.\d+\.\d+$/)
  const shown = await client.show({model: 'any'})
  assert.equal(shown.model_info['qwen3_moe.context_length'], 4096)
  assert.ok(shown.capabilities.includes('completion'))
})

test('chats', async () => {
  const whole = await client.chat({model: 'any', messages: says('A')})
  assert.equal(whole.message.content, text)
  assert.equal(whole.done_reason, 'stop')
  let joined = '', last
  for await (const part of await client.chat({model: 'any', messages: says('A'), stream: true})) {
    joined += part.message.content
    last = part
  }
  assert.equal(joined, text)
  assert.equal(last.eval_count, 4)
})

test('calls tools, thinks and keeps a format', async () => {
  const called = await client.chat({model: 'any', messages: says('T'), tools})
  assert.deepEqual(called.message.tool_calls[0].function.arguments, {city: 'Paris', days: 3})
  const thought = await client.chat({model: 'any', messages: says('R'), think: true})
  assert.equal(thought.message.thinking, 'Let me think.')
  const format = {type: 'object', properties: {city: {type: 'string'}, days: {type: 'integer'}},
                  required: ['city', 'days']}
  const kept = await client.chat({model: 'any', messages: says('O'), format})
  assert.deepEqual(JSON.parse(kept.message.content), {city: 'Oslo', days: 2})
})

test('generates', async () => {
  assert.equal((await client.generate({model: 'any', prompt: 'A'})).response, text)
  let joined = ''
  const stream = await client.generate({model: 'any', prompt: 'A', raw: true, stream: true})
  for await (const part of stream)
    joined += part.response
  assert.equal(joined, text)
})

test('reports errors', async () => {
  await assert.rejects(client.chat({model: 'any', messages: says('A'), options: {top_p: 7}}),
                       /options.top_p/)
  await assert.rejects(new Ollama({host}).list(), /API key/)
})

test('aborts', async () => {
  const stream = await client.chat({model: 'any', messages: says('L'), stream: true})
  let n = 0
  await assert.rejects(async () => {
    for await (const part of stream)
      if (part.message.content && ++n === 5)
        stream.abort()
  }, {name: 'AbortError'})
  assert.equal((await client.chat({model: 'any', messages: says('A')})).message.content, text)
})
