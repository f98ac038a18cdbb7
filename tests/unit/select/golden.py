#!/usr/bin/env python3
"""The rules of selection read a second time, in another language: recomputes every golden answer, receipt id and all.

    golden.py DIR          compares DIR/*.answer.json with what the rules give; exit 1 when one differs
    golden.py DIR --write  writes them
"""
import glob
import hashlib
import json
import os
import sys
from decimal import Decimal

DEFAULT = "worktree docker local_bwrap e2b modal daytona blaxel runloop vercel".split()
FREE = {"worktree", "docker", "local_bwrap"}


def text(value):
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def canonical(value):
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=True)


def by_bytes(names):
    return sorted(set(names), key=lambda s: s.encode())


def given(obj, key, default):
    value = obj.get(key)
    return default if value is None else value


def inputs_of(body):
    policy, env = given(body, "policy", {}), given(body, "environment", {})
    budget = env.get("budget_remaining_usd")
    candidates = [{"name": b["name"], "capabilities": by_bytes(b["capabilities"]),
                   "free": given(b, "free", b["name"] in FREE), "credentials": by_bytes(given(b, "credentials", []))}
                  for b in body["backends"]]
    return {
        "override": policy.get("override"),
        "allow_paid": given(policy, "allow_paid", False),
        "required_capabilities": by_bytes(given(policy, "required_capabilities", ["file_rw", "exec"])),
        "required_credentials": by_bytes(given(policy, "required_credentials", [])),
        "precedence": list(dict.fromkeys(given(policy, "precedence", DEFAULT))),
        "available_credentials": by_bytes(given(env, "available_credentials", [])),
        "budget_remaining_microusd": None if budget is None else int(Decimal(str(budget)) * 1000000),
        "network_egress_class": None, "backend_allowlist": None, "local_pool": None,
        "candidates": sorted(candidates, key=lambda c: c["name"].encode()),
    }


def missing(i, c):
    caps = by_bytes(set(i["required_capabilities"]) - set(c["capabilities"]))
    creds = by_bytes((set(i["required_credentials"]) | set(c["credentials"])) - set(i["available_credentials"]))
    return ([{"code": "missing_capabilities", "detail": "missing " + ", ".join(caps)}] if caps else []) + \
           ([{"code": "missing_credentials", "detail": "missing " + ", ".join(creds)}] if creds else [])


def money(i, c):
    budget = i["budget_remaining_microusd"]
    out = []
    if not c["free"] and not i["allow_paid"]:
        out.append({"code": "paid_not_allowed", "detail": "not free, and allow_paid is false"})
    if not c["free"] and budget is not None and budget <= 0:
        out.append({"code": "budget_exhausted", "detail": "not free, and the budget is used up"})
    return out


def select(i):
    """(backend or None, code or None, [(name, reasons)])"""
    order = i["precedence"]
    ranked = sorted(i["candidates"],
                    key=lambda c: (order.index(c["name"]) if c["name"] in order else len(order), c["name"].encode()))
    if not ranked:
        return None, "no_backends_registered", []
    override = i["override"]
    if override is not None:
        named = [c for c in ranked if c["name"] == override]
        if not named:
            why = [{"code": "not_the_override", "detail": f"the override names {override}, which is not registered"}]
            return None, "override_not_registered", [(c["name"], why) for c in ranked]
        why = missing(i, named[0])
        return (None, "override_" + why[0]["code"], [(override, why)]) if why else (override, None, [(override, [])])
    seen = [(c["name"], money(i, c) + missing(i, c)) for c in ranked]
    fit = [name for name, why in seen if not why]
    return (fit[0], None, seen) if fit else (None, "no_backend_satisfies_policy", seen)


def answer(body):
    inputs = inputs_of(body)
    backend, code, seen = select(inputs)
    rest = {"schema_version": 1, "pool_name": None, "pool_hash": None, "template_hash": None, "overrides_hash": None,
            "effective_manifest_hash": None, "selector_inputs": inputs, "chosen_backend": backend,
            "outcome": None if code is None else {"code": code, "reason": None, "field": None}}
    receipt = {"id": hashlib.sha256(canonical(rest).encode()).hexdigest(), **rest}
    receipt = json.loads(canonical(receipt))  # its members in canonical order
    considered = [{"backend": name, "eligible": not why, "reasons": why} for name, why in seen]
    if code is None:
        return {"backend": backend, "receipt": receipt, "considered": considered}
    return {"code": code, "status": 422, "field": "", "attempted": [name for name, _ in seen], "considered": considered,
            "receipt": receipt}


def main():
    write, bad = "--write" in sys.argv, 0
    for request in sorted(glob.glob(os.path.join(sys.argv[1], "*.request.json"))):
        path = request.replace(".request.json", ".answer.json")
        with open(request, encoding="utf-8") as f:
            wanted = text(answer(json.load(f))) + "\n"
        if write:
            with open(path, "w", encoding="utf-8") as f:
                f.write(wanted)
        else:
            with open(path, encoding="utf-8") as f:
                if f.read() != wanted:
                    print(f"{path} differs from\n{wanted}", file=sys.stderr)
                    bad = 1
    return bad


if __name__ == "__main__":
    sys.exit(main())
