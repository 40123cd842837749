"""Renders conversations with llama.cpp's chat templates, by Jinja2 with the settings of transformers:

    pip install transformers jinja2
    make_template_cases.py TEMPLATES random > ../../../../tests/data/cases/jinja-random.jsonl
    make_template_cases.py TEMPLATES calls > ../../../../tests/data/cases/jinja-calls.jsonl

TEMPLATES is the folder `models/templates` of llama.cpp.

`random`: conversations, then for each template the hash of each prompt (FNV-1a, 64 bits), or `!` if the template
fails. Conversations contain tools and their results, reasoning, and contents that are missing, lists of parts, or
unusual characters.

`calls`: answers with reasoning, text and calls as a template writes them, without the token that ends them, and the
end of the prompt before them. Ambiguous answers are left out: a value that contains its closing tag, the text `null`,
and a backslash that a template does not escape in a quoted string.
"""
import datetime
import json
import os
import pathlib
import random
import re
import sys

import transformers.utils.chat_template_utils as utils


class Then(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return datetime.datetime(2026, 8, 15, 12, 0, 0)


utils.datetime = Then
ALWAYS = {"bos_token": "<s>", "eos_token": "</s>"}

TEXTS = ["", "Hi", "Hello\nthere", " lead", "trail \n", "Café <b>&\"' 日本", "{{ x }}{% y %}", "<think>a</think>b", "</think>", "a'b", 'a"b', "\\n \\\\", "\t\x0b\x1c x", "😀👨‍👩‍👧", "\u00a0nb\u2028ls", "null", "123", "[1]", '{"a":1}', "<tool_call>\n{}\n</tool_call>", "\x1f\x7f", "İıſßǅ", "  ", "\n", "<|im_end|>"]
KEYS = ["a", "b", "key", "k é", "x y", "items", "get", "<k>", "'q'", "type", "0"]
ARGUMENTS = ["city", "n", "opts", "list", "é", "a b", "name", "arguments", "keys", "items"]
SWITCHES = [
    ("reasoning_effort", ["low", "high", "medium"]), ("thinking", [True, False]), ("preserve_thinking", [True, False]), ("clear_thinking", [True, False]),
    ("builtin_tools", [["browser", "python"], ["code_interpreter"]]), ("documents", [[{"title": "T", "text": "x"}]]), ("date_string", ["01 Jan 2025"]),
    ("model_identity", ["I am."]), ("tools_in_user_message", [True, False]), ("keep_past_thinking", [True, False]), ("truncate_history_thinking", [True, False]),
]


def value(r, depth=0):
    kind = r.random()
    if depth > 2 or kind < 0.4:
        return r.choice(TEXTS)
    if kind < 0.55:
        return r.choice([0, 1, -3, 10**12, 0.5, 1.0, -2.25, 1e20, 1e-7, 100.0])
    if kind < 0.68:
        return r.choice([True, False, None])
    if kind < 0.84:
        return [value(r, depth + 1) for _ in range(r.randrange(4))]
    return {r.choice(KEYS): value(r, depth + 1) for _ in range(r.randrange(4))}


def schema(r, depth=0):
    kind = r.choice(["string", "integer", "number", "boolean", "array", "object", ["string", "null"]])
    out = {"type": kind}
    if r.random() < 0.7:
        out["description"] = r.choice(TEXTS)
    if kind == "string" and r.random() < 0.3:
        out["enum"] = ["a", "b'c", r.choice(TEXTS)]
    if kind == "array" and depth < 2:
        out["items"] = schema(r, depth + 1)
    if kind == "object" and depth < 2:
        out["properties"] = {f"p{i}": schema(r, depth + 1) for i in range(r.randrange(3))}
    return out


def tool(r, number):
    properties = {key: schema(r) for key in r.sample(ARGUMENTS, r.randrange(4))}
    parameters = {"type": "object", "properties": properties, "required": list(properties)[:1]}
    return {"type": "function", "function": {"name": f"get_{number}", "description": r.choice(TEXTS), "parameters": parameters}}


def content(r):
    kind = r.random()
    if kind < 0.85:
        return r.choice(TEXTS)
    if kind < 0.9:
        return None
    return [r.choice([{"type": "text", "text": r.choice(TEXTS)}, {"type": "image"}]) for _ in range(r.randrange(1, 4))]


def answer(r, tools):
    message = {"role": "assistant", "content": content(r)}
    if r.random() < 0.4:
        message["reasoning_content"] = r.choice(TEXTS)
    if not tools or r.random() < 0.4:
        return [message]
    calls = []
    for number in range(r.choice([1, 1, 2])):
        arguments = {r.choice(ARGUMENTS): value(r) for _ in range(r.choice([0, 1, 2]))}
        calls.append({"id": f"call0000{number}", "type": "function", "function": {"name": f"get_{number}", "arguments": arguments}})
    message["tool_calls"] = calls
    results = [{"role": "tool", "tool_call_id": call["id"], "name": call["function"]["name"], "content": r.choice(TEXTS)} for call in calls]
    return [message, *results, *([{"role": "assistant", "content": content(r)}] if r.random() < 0.6 else [])]


def conversation(r):
    tools = [tool(r, number) for number in range(r.choice([0, 0, 1, 2]))]
    messages = [{"role": "system", "content": content(r)}] if r.random() < 0.5 else []
    for _ in range(r.randrange(1, 4)):
        messages += [{"role": "user", "content": content(r)}, *answer(r, tools)]
    if r.random() < 0.7:
        messages.append({"role": "user", "content": content(r)})
    variables = {**ALWAYS, "messages": messages, "add_generation_prompt": r.random() < 0.8}
    if tools:
        variables["tools"] = tools
    if r.random() < 0.5:
        variables["enable_thinking"] = r.random() < 0.5
    return {**variables, **{name: r.choice(values) for name, values in SWITCHES if r.random() < 0.1}}


def fnv(text):
    state = 0xCBF29CE484222325
    for byte in text.encode("utf-8"):
        state = (state ^ byte) * 0x100000001B3 % 2**64
    return f"{state:016x}"


def show(row):
    print(json.dumps(row, ensure_ascii=False))


def templates(folder):
    for path in sorted(pathlib.Path(folder).glob("*.jinja")):
        source = path.read_text(encoding="utf-8")
        yield path.name, source, utils._compile_jinja_template(source)


def make_random(folder):
    r = random.Random(13)
    conversations = [conversation(r) for _ in range(30)]
    for variables in conversations:
        show({"variables": variables})
    for name, _, template in templates(folder):
        hashes = []
        for variables in conversations:
            try:
                hashes.append(fnv(template.render(**json.loads(json.dumps(variables)))))
            except Exception:
                hashes.append("!")
        show({"file": name, "hashes": hashes})


PROPERTIES = {"city": "string", "note": "string", "days": "integer", "ratio": "number", "flag": "boolean", "opts": "object", "list": "array"}
TOOLS = [
    {"type": "function", "function": {"name": name, "description": "D.", "parameters": {"type": "object", "properties": {key: {"type": kind, "description": "d"} for key, kind in properties.items()}, "required": []}}}
    for name, properties in [("get_weather", PROPERTIES), ("run-code_2", {"code": "string"}), ("ping", {})]
]
STRINGS = ["Wick", "a b", "it's", 'say "hi"', '{"a": 1}', "} ]", "line1\nline2", "tab\there", "</tool_call>", "<tool_call>", "<|tool_call_end|>", "[TOOL_CALLS]", "123", "true", "1.50", "é日本😀", "```json", "<think>x</think>", "a,b=c", "[1, 2]", "&lt;b&gt; & <b>", "$x {{y}}", "http://a/b?c=d#e", 'def f(x):\n    return x["k"]']
VALUES = {"city": STRINGS, "note": STRINGS, "code": STRINGS, "days": [0, 3, -7, 10**12], "ratio": [0.5, -2.25], "flag": [True, False], "opts": [{"a": {"b": [1, "x}"]}}, {"k": "</tool_call>"}], "list": [["a", "b"], [1, 2.5, True]]}
ENDS = ["<|im_end|>", "<|eot_id|>", "<|eom_id|>", "</s>", "<|end|>", "<|call|>", "<|endoftext|>", "<｜end▁of▁sentence｜>", "<|END_OF_TURN_TOKEN|>", "<|end_of_text|>", "<|eot|>", "<end_of_turn>", "<|role_end|>", "[e~[", "<turn|>", "<|user|>", "<seed:eos>", "<SPECIAL_12>", "<end_of_sentence>", "<|return|>", "<|tool_response>", "<|message_sep|>", "<sep>", "</assistant>", "<｜hy_eos:opensource｜>"]


def call(r):
    function = r.choice(TOOLS)["function"]
    keys = list(function["parameters"]["properties"])
    return {"name": function["name"], "arguments": {key: r.choice(VALUES[key]) for key in r.sample(keys, min(len(keys), r.randrange(1, 4)))}}


def cut_end(text):
    # The template of Command R7B starts another turn behind calls.
    text = text.split("<|END_OF_TURN_TOKEN|>")[0]
    while end := next((end for end in ENDS if text.rstrip().endswith(end)), None):
        text = text.rstrip()[: -len(end)]
    return text


def answer_with_calls(template, r, switches):
    calls, said, thought = [call(r) for _ in range(r.choice([1, 1, 2]))], r.choice(["", "Let me see."]), r.choice(["", "Hmm, I think.\nYes"])
    variables = {**ALWAYS, "tools": TOOLS, **switches}
    user = {"role": "user", "content": "Q?"}
    prompt = template.render(messages=[user], add_generation_prompt=True, **json.loads(json.dumps(variables)))
    given = [{"id": f"call0000{number}", "type": "function", "function": one} for number, one in enumerate(calls)]
    message = {"role": "assistant", "content": said, "tool_calls": given, **({"reasoning_content": thought} if thought else {})}
    whole = template.render(messages=[user, message], add_generation_prompt=False, **json.loads(json.dumps(variables)))
    if not whole.startswith(prompt):
        return None
    text = cut_end(whole[len(prompt) :])
    # Texts that become reasoning or separate messages, and parts that a template leaves out.
    if said and any(mark in text for mark in ("<|channel|>analysis", "<SPECIAL_11>")):
        return None
    kept = [one for one in calls if all(str(part) in text for part in [one["name"]])]
    if kept != calls or text.count(calls[0]["name"]) < sum(one["name"] == calls[0]["name"] for one in calls):
        return None
    return {"prompt": prompt[-80:], "text": text, "thinking": thought if thought and thought in text else "", "content": said if said and said in text else "", "calls": calls}


def make_calls(folder):
    show({"tools": TOOLS})
    for name, _, template in templates(folder):
        r = random.Random(name)
        found = []
        for _ in range(40):
            switches = r.choice([{}, {"enable_thinking": True, "thinking": True}, {"enable_thinking": False, "thinking": False}])
            try:
                found.append(answer_with_calls(template, r, switches))
            except Exception:
                continue
        for row in [row for row in found if row][:4]:
            show({"file": name, **row})


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[2] not in ("random", "calls"):
        sys.exit(__doc__)
    (make_random if sys.argv[2] == "random" else make_calls)(sys.argv[1])
