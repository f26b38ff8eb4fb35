// Lets npm's @continuedev/cli ask the server at FLASHMOE_URL; run by clients_test.py.
import assert from 'node:assert/strict'
import {spawnSync} from 'node:child_process'
import {writeFileSync} from 'node:fs'
import {test} from 'node:test'
import {fileURLToPath} from 'node:url'

const url = process.env.FLASHMOE_URL
const config = process.env.HOME + '/config.yaml'

for (const [provider, base] of [['openai', '/v1'], ['ollama', '']])
  test(`asks through ${provider}`, () => {
    writeFileSync(config, `name: test
version: 1.0.0
schema: v1
models:
  - name: flash
    provider: ${provider}
    model: any
    apiBase: ${url}${base}
    apiKey: sesame
    roles: [chat]
`)
    const program = fileURLToPath(new URL('node_modules/.bin/cn', import.meta.url))
    const done = spawnSync(program, ['-p', '--config', config, 'A'], {
      encoding: 'utf8', timeout: 600000, input: '',
      env: {...process.env, CONTINUE_TELEMETRY_ENABLED: '0', CI: '1'}})
    assert.match(done.stdout, /Hello there, world\./, done.stdout + done.stderr)
  })
