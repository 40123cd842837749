"""Makes the requests that schemathesis invents meet a model, and no other server."""
import schemathesis

# Routes whose model is one that there is, so that requests get beyond looking for it.
ANSWERS = ("/api/generate", "/api/chat", "/api/show", "/api/tokenize", "/api/detokenize", "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/v1/messages/count_tokens")
# Where the limit of tokens stands.
LIMITS = {"/v1/chat/completions": "max_tokens", "/v1/completions": "max_tokens", "/v1/responses": "max_output_tokens", "/v1/messages": "max_tokens"}


@schemathesis.hook
def before_call(context, case, kwargs):
    body, path = case.body, case.operation.path
    if not isinstance(body, dict):
        return
    if path in ANSWERS and isinstance(body.get("model"), str):
        body["model"] = "cria"
    if path in ("/api/pull", "/api/push"):
        # No name of a model: nobody is asked for it.
        for name in ("model", "name"):
            if isinstance(body.get(name), str):
                body[name] = "../x"
    if path == "/api/create":
        # A model that is not there would be fetched.
        if isinstance(body.get("from"), str) and body["from"]:
            body["from"] = "cria"
    bound(path, body)


def bound(path, body):
    """Answers of a few tokens: what is tried is the form of requests and answers."""
    if path in ("/api/generate", "/api/chat"):
        options = body.setdefault("options", {})
        if isinstance(options, dict) and isinstance(options.get("num_predict", 0), (int, float)):
            options["num_predict"] = 3
    limit = LIMITS.get(path)
    if limit and isinstance(body.get(limit, 1), int) and body.get(limit, 9) > 8:
        body[limit] = 3
