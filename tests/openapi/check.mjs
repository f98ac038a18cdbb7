// Validates the API description, and holds answers observed by the black-box tests to it:
//   node check.mjs DESCRIPTION [OBSERVED]
// Every example in the description must match its schema. OBSERVED: a directory of files of JSON lines {method, path, status, type, body, own}.
// Every answer must match its operation's schema for that status; every documented status of every operation must have been seen, but for
// the exceptions below, which are counted; a status that is not documented must be one of those that any operation may answer.
import { readFileSync, readdirSync } from 'node:fs'
import { Validator } from '@seriousme/openapi-schema-validator'
import Ajv2020 from 'ajv/dist/2020.js'
import addFormats from 'ajv-formats'
import { parse } from 'yaml'

const [description, observed] = process.argv.slice(2)
let failed = 0
const fail = (text) => {
  failed++
  if (failed <= 40) console.error('FAIL ' + text)
}

// Statuses that no test provokes, and why.
const unseen = new Map(
  // The tests that kill the server's spawner run as root only.
  process.getuid() === 0 ? [] : [['health 503', 'needs root']],
)
// What `default` stands for, as the description's introduction lists it.
const anywhere = new Set([400, 405, 406, 408, 413, 414, 415, 417, 421, 431, 500, 501, 502, 503, 507])

const verdict = await new Validator().validate(description)
if (!verdict.valid) fail('the description is not valid OpenAPI: ' + JSON.stringify(verdict.errors))

const api = parse(readFileSync(description, 'utf8'))
const ajv = new Ajv2020({ strict: false, allErrors: false })
addFormats(ajv)
ajv.addSchema(api, 'api')

const deref = (o) => {
  while (o && o.$ref) o = o.$ref.slice(2).split('/').reduce((v, k) => v[k.replace(/~1/g, '/').replace(/~0/g, '~')], api)
  return o
}
const pointer = (...parts) => 'api#/' + parts.map((p) => encodeURIComponent(String(p).replace(/~/g, '~0').replace(/\//g, '~1'))).join('/')

const operations = []
for (const [path, item] of Object.entries(api.paths))
  for (const method of ['get', 'put', 'post', 'delete'])
    if (item[method]) {
      const text = path.replace(/\{rest\}/, '\u0000').replace(/\{[^}]+\}/g, '[^/]+').replace('\u0000', '.*')
      operations.push({ path, method, op: item[method], pattern: new RegExp('^(/v1)?' + text + '/?$'), seen: new Set() })
    }

const find = (method, path) => {
  const exact = operations.filter((o) => o.pattern.test(path))
  const m = method === 'HEAD' ? 'get' : method.toLowerCase()
  // A literal path (/receipts/verify) wins over a parameter (/receipts/{id}).
  const best = exact.sort((a, b) => (a.path.match(/\{/g) || []).length - (b.path.match(/\{/g) || []).length)
  const proxy = best.find((o) => o.op.operationId === 'proxy')
  return proxy || best.find((o) => o.method === m)
}

const compiled = new Map()
const schemaOf = (o, status) => {
  const key = o.op.operationId + ' ' + status
  if (compiled.has(key)) return compiled.get(key)
  const name = o.op.responses[status] ? status : 'default'
  const response = deref(o.op.responses[name])
  const out = {}
  for (const [type, media] of Object.entries(response?.content || {}))
    out[type] = media.schema ? ajv.compile({ $ref: locate(o, name, type) }) : null
  compiled.set(key, out)
  return out
}
const locate = (o, name, type) => {
  const r = o.op.responses[name]
  if (r.$ref) return pointer(...r.$ref.slice(2).split('/'), 'content', type, 'schema')
  return pointer('paths', o.path, o.method, 'responses', name, 'content', type, 'schema')
}

// ---- examples ----
let examples = 0
const checkExample = (where, example) => {
  examples++
  const check = ajv.compile({ $ref: pointer(...where, 'schema') })
  if (!check(example)) fail(`example at ${where.join('/')}: ${ajv.errorsText(check.errors)}: ${JSON.stringify(example)}`)
}
const walk = (v, where) => {
  if (v === null || typeof v !== 'object') return
  if (v.schema && 'example' in v) checkExample(where, v.example)
  if (v.schema && v.examples) for (const e of Object.values(v.examples)) checkExample(where, e.value)
  for (const [key, child] of Object.entries(v)) if (key !== 'example' && key !== 'examples') walk(child, [...where, key])
}
walk(api, [])

// ---- observed answers ----
let answers = 0
if (observed) {
  const lines = readdirSync(observed).flatMap((f) => readFileSync(observed + '/' + f, 'utf8').split('\n'))
  for (const line of lines) {
    if (!line) continue
    const a = JSON.parse(line)
    const o = find(a.method, a.path)
    if (!o) continue // 404s and 405s of paths that do not exist
    if (o.op.operationId === 'proxy' && !a.own) {
      if (a.status === 200) o.seen.add('200')
      continue // the service's own answer
    }
    answers++
    const status = String(a.status)
    o.seen.add(status)
    if (a.status >= 400 && a.type !== 'application/problem+json' && a.method !== 'HEAD') {
      fail(`${a.method} ${a.path} ${status}: an error of type ${a.type}`)
      continue
    }
    const foreign = a.status === 403 && a.body?.includes('"code":"cross_origin"') // of a server without tokens: any operation
    if (!o.op.responses[status] && !anywhere.has(a.status) && !foreign) fail(`${o.op.operationId} ${status}: not documented`)
    const schemas = schemaOf(o, status)
    const type = (a.type || '').split(';')[0]
    if (a.body === undefined || a.method === 'HEAD' || !(type in schemas) || !schemas[type]) {
      if (a.body && a.method !== 'HEAD' && Object.keys(schemas).length && !(type in schemas) && a.status < 400)
        fail(`${a.method} ${a.path} ${status}: undocumented type ${type}`)
      continue
    }
    let body
    try {
      body = type === 'application/x-ndjson' ? a.body.split('\n').filter((l) => l).map((l) => JSON.parse(l)) : [JSON.parse(a.body)]
    } catch (e) {
      fail(`${a.method} ${a.path} ${status}: not JSON`)
      continue
    }
    for (const one of body)
      if (!schemas[type](one))
        fail(`${o.op.operationId} ${status}: ${ajv.errorsText(schemas[type].errors)}: ${JSON.stringify(one).slice(0, 400)}`)
    body = body[0]
    if (a.status >= 400 && body.status !== a.status) fail(`${a.method} ${a.path}: status ${a.status} but body says ${body.status}`)
  }
  let documented = 0
  let excepted = 0
  for (const o of operations)
    for (const status of Object.keys(o.op.responses)) {
      if (status === 'default') continue
      documented++
      if (o.seen.has(status)) continue
      if (unseen.has(`${o.op.operationId} ${status}`)) excepted++
      else fail(`never observed: ${o.op.operationId} ${status}`)
    }
  console.log(`${documented} documented statuses of ${operations.length} operations, ${excepted} excepted, ${answers} answers checked`)
}
console.log(`${examples} examples checked`)
console.log(failed ? `${failed} failures` : 'the description holds')
process.exit(failed ? 1 : 0)
