// The vendor's own SDK against the stand-in: what it can do there is what the stand-in may be trusted with.
// usage: node sdk.mjs PYTHON STANDIN
import assert from 'node:assert/strict'
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import http from 'node:http'
import { Sandbox, CommandExitError, TimeoutError, NotFoundError } from 'e2b'

const key = 'e2b_' + '0'.repeat(40)
const [python, program] = process.argv.slice(2)
const standin = spawn(python, [program, '--templates', 'base,other'], {
  stdio: ['pipe', 'pipe', 'inherit'],
  env: { ...process.env, E2B_STANDIN_KEY: key, PYTHONDONTWRITEBYTECODE: '1' }
})
const [line] = await once(standin.stdout, 'data')
const { port } = JSON.parse(line.toString())
const url = `http://127.0.0.1:${port}`
const opts = { apiKey: key, apiUrl: url, sandboxUrl: url, domain: 'local.test' }

async function order (path, body) {
  const r = await fetch(`${url}/_standin/${path}`, body === undefined ? {} : { method: 'POST', body: JSON.stringify(body) })
  return r.status === 204 ? null : r.json()
}

function viaHost (host, path, headers = {}) {
  return new Promise((resolve, reject) => {
    http.get({ host: '127.0.0.1', port, path, headers: { Host: host, ...headers } }, (r) => {
      let text = ''
      r.on('data', (d) => { text += d })
      r.on('end', () => resolve({ status: r.statusCode, text }))
    }).on('error', reject)
  })
}

const checks = {
  async 'create, info, list, kill' () {
    const s = await Sandbox.create('base', { ...opts, metadata: { owner: 'm1', 'le ase': 'L&1' }, timeoutMs: 60_000 })
    const info = await s.getInfo()
    assert.equal(info.sandboxId, s.sandboxId)
    assert.deepEqual(info.metadata, { owner: 'm1', 'le ase': 'L&1' })
    const left = info.endAt - Date.now()
    assert.ok(left > 50_000 && left <= 61_000, String(left))
    const more = await Sandbox.create('other', { ...opts, metadata: { owner: 'm2' } })
    const seen = await Sandbox.list({ ...opts, query: { metadata: { 'le ase': 'L&1' } } }).nextItems()
    assert.deepEqual(seen.map((x) => x.sandboxId), [s.sandboxId])
    const pages = Sandbox.list({ ...opts, limit: 1 })
    const all = []
    while (pages.hasNext) all.push(...(await pages.nextItems()))
    assert.equal(all.length, 3)
    assert.equal(new Set(all.map((x) => x.sandboxId)).size, 3)
    assert.equal(await s.isRunning(), true)
    assert.equal(await s.kill(), true)
    assert.equal(await Sandbox.kill(s.sandboxId, opts), false)
    assert.equal(await s.isRunning(), false)
    await assert.rejects(s.getInfo(), NotFoundError)
    await more.kill()
  },
  async 'an unknown template and a wrong key are refused' () {
    await assert.rejects(Sandbox.create('none', opts))
    await assert.rejects(Sandbox.create('base', { ...opts, apiKey: 'e2b_' + '1'.repeat(40) }))
  },
  async 'commands: output, codes, environment, directory, input' (s) {
    const r = await s.commands.run('echo out; echo err >&2; pwd; echo $A$B', { envs: { B: '2' }, cwd: '/tmp' })
    assert.equal(r.stdout, 'out\n/tmp\n12\n')
    assert.equal(r.stderr, 'err\n')
    assert.equal(r.exitCode, 0)
    await assert.rejects(s.commands.run('exit 3'), (e) => e instanceof CommandExitError && e.exitCode === 3)
    await assert.rejects(s.commands.run('true', { cwd: '/none' }))
    const c = await s.commands.run('cat; echo done', { background: true, stdin: true })
    await s.commands.sendStdin(c.pid, 'typed')
    await s.commands.closeStdin(c.pid)
    assert.equal((await c.wait()).stdout, 'typeddone\n')
  },
  async 'commands: streamed, listed, killed, timed out, followed again' (s) {
    const pieces = []
    await s.commands.run('echo a; sleep 0.3; echo b', { onStdout: (d) => { pieces.push(d) } })
    assert.deepEqual(pieces, ['a\n', 'b\n'])
    const big = await s.commands.run('head -c 3000000 /dev/zero | tr "\\0" x')
    assert.equal(big.stdout.length, 3000000)
    const c = await s.commands.run('sleep 30', { background: true })
    assert.ok((await s.commands.list()).some((p) => p.pid === c.pid))
    assert.equal(await c.kill(), true)
    await assert.rejects(c.wait(), (e) => e.exitCode === -1 || /kill/.test(String(e)))
    assert.equal(await s.commands.kill(c.pid), false)
    await assert.rejects(s.commands.run('sleep 30', { timeoutMs: 300 }), TimeoutError)
    const d = await s.commands.run('sleep 0.5; echo late', { background: true })
    await d.disconnect()
    assert.equal((await (await s.commands.connect(d.pid)).wait()).stdout, 'late\n')
  },
  async 'a terminal' (s) {
    let seen = ''
    const t = await s.pty.create({ cols: 80, rows: 24, onData: (d) => { seen += Buffer.from(d).toString() } })
    await s.pty.resize(t.pid, { cols: 100, rows: 30 })
    await s.pty.sendInput(t.pid, Buffer.from('stty size; exit 4\n'))
    await assert.rejects(t.wait(), (e) => e.exitCode === 4)
    assert.match(seen, /30 100/)
  },
  async 'files' (s) {
    await s.files.write('/home/user/d/x', 'text\n')
    assert.equal(await s.files.read('d/x'), 'text\n')
    const bytes = new Uint8Array(200_000).map((_, i) => i % 251)
    await s.files.write('d/bytes', bytes.buffer)
    assert.deepEqual(new Uint8Array(await s.files.read('d/bytes', { format: 'bytes' })), bytes)
    await s.files.write([{ path: 'd/one', data: '1' }, { path: 'd/two', data: '22' }])
    const names = (await s.files.list('d')).map((e) => [e.name, e.type, e.size])
    assert.deepEqual(names, [['bytes', 'file', 200000], ['one', 'file', 1], ['two', 'file', 2], ['x', 'file', 5]])
    assert.equal(await s.files.makeDir('d/sub'), true)
    assert.equal(await s.files.makeDir('d/sub'), false)
    await s.files.rename('d/one', 'd/sub/one')
    assert.equal(await s.files.exists('d/one'), false)
    assert.equal((await s.files.getInfo('d/sub/one')).path, '/home/user/d/sub/one')
    await s.files.remove('d')
    await assert.rejects(s.files.read('d/x'), NotFoundError)
    const r = await fetch(`${url}/files?path=/etc/hosts`, {
      headers: { 'X-Access-Token': s.envdAccessToken ?? '', 'E2b-Sandbox-Id': s.sandboxId, 'E2b-Sandbox-Port': '49983', Range: 'bytes=4-8' }
    })
    assert.equal(r.status, 206)
    assert.equal(await r.text(), '0.0.1')
  },
  async 'a port' (s) {
    await s.commands.run('cd /tmp && echo hi > page && exec python3 -m http.server 8000', { background: true })
    const host = s.getHost(8000)
    assert.equal(host, `8000-${s.sandboxId}.local.test`)
    let got
    for (let i = 0; i < 100; i++) {
      got = await viaHost(host, '/page')
      if (got.status === 200) break
      await new Promise((resolve) => setTimeout(resolve, 50))
    }
    assert.equal(got.text, 'hi\n')
    assert.equal((await viaHost(s.getHost(8001), '/')).status, 502)
  },
  async 'a port behind a token' () {
    const s = await Sandbox.create('base', { ...opts, network: { allowPublicTraffic: false } })
    assert.equal((await viaHost(s.getHost(8001), '/')).status, 403)
    assert.equal((await viaHost(s.getHost(8001), '/', { 'e2b-traffic-access-token': s.trafficAccessToken })).status, 502)
    await s.kill()
  },
  async 'timeouts, pause, resume, snapshot' () {
    const s = await Sandbox.create('base', { ...opts, timeoutMs: 60_000 })
    await s.setTimeout(120_000)
    assert.ok((await s.getInfo()).endAt - Date.now() > 100_000)
    await s.files.write('kept', 'yes')
    const c = await s.commands.run('sleep 100', { background: true })
    c.wait().catch(() => {})
    await s.pause()
    assert.equal((await Sandbox.getInfo(s.sandboxId, opts)).state, 'paused')
    const again = await Sandbox.connect(s.sandboxId, opts)
    assert.equal(await again.files.read('kept'), 'yes')
    assert.ok((await again.commands.list()).some((p) => p.pid === c.pid))
    const snap = await again.createSnapshot()
    const named = await again.createSnapshot({ name: 'sandgate-1_x' })
    assert.ok(snap.names.length === 0 && named.names.includes(named.snapshotId) && named.snapshotId.endsWith('/sandgate-1_x:default'))
    assert.equal((await again.createSnapshot({ name: 'sandgate-1_x' })).snapshotId, named.snapshotId)
    await assert.rejects(again.createSnapshot({ name: 'Not a name' }))
    const pages = Sandbox.listSnapshots({ ...opts, limit: 1 })
    const all = []
    while (pages.hasNext) all.push(...(await pages.nextItems()).map((x) => x.snapshotId))
    assert.deepEqual(all.sort(), [snap.snapshotId, named.snapshotId].sort())
    const byName = await Sandbox.listSnapshots({ ...opts, name: 'sandgate-1_x' }).nextItems()
    assert.deepEqual(byName, [named])
    assert.ok((await again.commands.list()).some((p) => p.pid === c.pid))
    for (const { snapshotId } of [snap, named]) {
      const copy = await Sandbox.create(snapshotId, opts)
      assert.equal(await copy.files.read('kept'), 'yes')
      await copy.kill()
      assert.equal(await Sandbox.deleteSnapshot(snapshotId, opts), true)
      assert.equal(await Sandbox.deleteSnapshot(snapshotId, opts), false)
      await assert.rejects(Sandbox.create(snapshotId, opts))
    }
    await again.setTimeout(1_000)
    for (let i = 0; i < 100 && await again.isRunning(); i++) await new Promise((resolve) => setTimeout(resolve, 50))
    assert.equal(await again.isRunning(), false)
  },
  async 'faults come as ordered' () {
    await order('faults', [{ op: 'create', kind: 'status', status: 500 }, { op: 'create', kind: 'drop_after' }])
    await assert.rejects(Sandbox.create('base', { ...opts, metadata: { who: 'nobody' } }))
    assert.equal((await order('state')).sandboxes.filter((b) => b.metadata.who === 'nobody').length, 0)
    await assert.rejects(Sandbox.create('base', { ...opts, metadata: { who: 'nobody' } }))
    const made = (await order('state')).sandboxes.filter((b) => b.metadata.who === 'nobody')
    assert.equal(made.length, 1)
    await order('vanish', { id: made[0].id })
    assert.equal(await Sandbox.kill(made[0].id, opts), false)
  }
}

let failed = 0
const shared = await Sandbox.create('base', { ...opts, envs: { A: '1' } })
for (const [name, check] of Object.entries(checks)) {
  const begun = Date.now()
  try {
    await check(shared)
    console.log(`ok ${name} (${Date.now() - begun} ms)`)
  } catch (e) {
    failed++
    console.log(`FAILED ${name}:`, e)
  }
}
await shared.kill()
const left = (await order('state')).sandboxes
if (left.length) {
  failed++
  console.log('left behind:', left)
}
standin.stdin.end()
await once(standin, 'exit')
process.exit(failed ? 1 : 0)
