// Checks what npm's @openai/agents sees of the server at FLASHMOE_URL; run by clients_test.py.
import assert from 'node:assert/strict'
import {test} from 'node:test'
import {Agent, OpenAIProvider, Runner, setTracingDisabled, tool} from '@openai/agents'
import {z} from 'zod'

const text = 'Hello there, world.'
setTracingDisabled(true)

for (const useResponses of [false, true])
  test(`calls a tool through ${useResponses ? 'responses' : 'chat completions'}`, async () => {
    const asked = []
    const weather = tool({
      name: 'get_weather', description: 'Tells the weather.',
      parameters: z.object({city: z.string(), days: z.number()}),
      execute: async input => { asked.push(input); return 'sunny A' }})
    const provider = new OpenAIProvider({baseURL: process.env.FLASHMOE_URL + '/v1',
                                         apiKey: 'sesame', useResponses})
    const runner = new Runner({modelProvider: provider, model: 'any'})
    const agent = new Agent({name: 'x', instructions: 'Help.', tools: [weather], model: 'any'})
    assert.equal((await runner.run(agent, 'T')).finalOutput, text)
    assert.deepEqual(asked, [{city: 'Paris', days: 3}])
    const stream = await runner.run(agent, 'A', {stream: true})
    let joined = ''
    for await (const part of stream.toTextStream())
      joined += part
    assert.equal(joined, text)
  })
