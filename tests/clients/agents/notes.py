"""A small MCP server over standard input and output: one tool, `add`, which appends a line to the file named by $PUNA_NOTES."""
import json
import os
import sys

TOOL = {
    "name": "add",
    "description": "Adds a note",
    "inputSchema": {"type": "object", "properties": {"note": {"type": "string"}}, "required": ["note"]},
}


def result(request):
    """The result of a request; `None` where there is no such method."""
    params = request.get("params", {})
    match request["method"]:
        case "initialize":
            server = {"name": "notes", "version": "1.0"}
            return {"protocolVersion": params.get("protocolVersion", "2025-06-18"), "capabilities": {"tools": {}}, "serverInfo": server}
        case "tools/list":
            return {"tools": [TOOL]}
        case "tools/call":
            note = params["arguments"]["note"]
            with open(os.environ["PUNA_NOTES"], "a") as notes:
                notes.write(note + "\n")
            return {"content": [{"type": "text", "text": f"noted {note}"}]}
        case "ping":
            return {}


for line in sys.stdin:
    request = json.loads(line)
    if "id" not in request:
        continue
    done = result(request)
    answer = {"error": {"code": -32601, "message": "no such method"}} if done is None else {"result": done}
    print(json.dumps({"jsonrpc": "2.0", "id": request["id"], **answer}), flush=True)
