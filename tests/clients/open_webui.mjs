// Chats once with each model in the page of Open WebUI; run by open_webui_test.py.
import assert from 'node:assert/strict'
import {after, before, test} from 'node:test'

import {launch} from '../web/browser.mjs'

const url = process.env.OPEN_WEBUI_URL
const timeout = 600000 // ends a hanging test; nothing here needs a fast machine
let browser, page
const elsewhere = []

before(async () => {
  browser = await launch()
  page = await browser.newPage({viewport: {width: 1280, height: 900}})
  page.setDefaultTimeout(timeout)
  page.on('request', request => {
    if (!request.url().startsWith(url) && !/^(blob|data):/.test(request.url()))
      elsewhere.push(request.url())
  })
  // The release notes, which come over the page at some time.
  await page.addLocatorHandler(page.getByText("What's New in Open WebUI"),
                               () => page.keyboard.press('Escape'))
})
after(() => browser.close())

for (const model of JSON.parse(process.env.OPEN_WEBUI_MODELS))
  test(`chats with ${model}`, {timeout}, async () => {
    await page.goto(`${url}/?models=${model}`, {timeout, waitUntil: 'domcontentloaded'})
    await page.locator('#model-selector-model-button').getByText(model).waitFor()
    const input = page.locator('#chat-input')
    await input.click()
    await input.pressSequentially('A')
    await input.press('Enter')
    const answer = page.locator('.chat-assistant').first()
    await answer.getByText('Hello there, world.').waitFor()
    assert.match(await page.locator('.chat-user').first().innerText(), /^A$/m)
  })

test('asks no other host', () => assert.deepEqual(elsewhere, []))
