// Package clients drives every method of Ollama's Go client against the server at $PUNA_URL.
package clients

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/ollama/ollama/api"
)

var (
	greedy   = map[string]any{"temperature": 0}
	no       = false
	noThink  = &api.ThinkValue{Value: false}
	embedder = os.Getenv("PUNA_EMBEDDER")
)

func client(t *testing.T) (*api.Client, context.Context) {
	t.Helper()
	base, err := url.Parse(os.Getenv("PUNA_URL"))
	check(t, err)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return api.NewClient(base, http.DefaultClient), ctx
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func expect(t *testing.T, ok bool, what ...any) {
	t.Helper()
	if !ok {
		t.Fatal(what...)
	}
}

// status is what the client makes of an error of the server.
func status(t *testing.T, err error, code int, text string) {
	t.Helper()
	var failed api.StatusError
	expect(t, errors.As(err, &failed), "no StatusError but", err)
	expect(t, failed.StatusCode == code && strings.Contains(failed.ErrorMessage, text), failed)
}

func user(text string) []api.Message { return []api.Message{{Role: "user", Content: text}} }

func TestHeartbeatAndVersion(t *testing.T) {
	c, ctx := client(t)
	check(t, c.Heartbeat(ctx))
	version, err := c.Version(ctx)
	check(t, err)
	expect(t, strings.Count(version, ".") == 2, version)
}

func TestClientFromEnvironment(t *testing.T) {
	t.Setenv("OLLAMA_HOST", os.Getenv("PUNA_URL"))
	c, err := api.ClientFromEnvironment()
	check(t, err)
	check(t, c.Heartbeat(context.Background()))
}

func TestListAndShow(t *testing.T) {
	c, ctx := client(t)
	list, err := c.List(ctx)
	check(t, err)
	var found bool
	for _, model := range list.Models {
		if model.Name == "cria:latest" {
			found = true
			expect(t, model.Size > 6_000_000 && len(model.Digest) == 64 && model.Details.Family == "llama", model)
			expect(t, time.Since(model.ModifiedAt) > 0, model.ModifiedAt)
		}
	}
	expect(t, found, list)
	shown, err := c.Show(ctx, &api.ShowRequest{Model: "cria", Verbose: true})
	check(t, err)
	expect(t, shown.ModelInfo["general.architecture"] == "llama", shown.ModelInfo)
	expect(t, len(shown.Tensors) > 10 && len(shown.Tensors[0].Shape) > 0, shown.Tensors)
	expect(t, strings.HasPrefix(shown.Modelfile, "# Modelfile") && len(shown.Capabilities) > 2, shown.Capabilities)
}

func TestGenerate(t *testing.T) {
	c, ctx := client(t)
	ask := func(stream *bool) (text string, last api.GenerateResponse) {
		request := &api.GenerateRequest{Model: "cria", Prompt: "What is the capital of France?", Think: noThink, Options: greedy, Stream: stream}
		check(t, c.Generate(ctx, request, func(r api.GenerateResponse) error {
			text += r.Response
			last = r
			return nil
		}))
		return
	}
	streamed, last := ask(nil)
	expect(t, streamed == "Paris." && last.Done && last.DoneReason == "stop", streamed, last)
	expect(t, last.EvalCount > 0 && last.PromptEvalCount > 0 && last.TotalDuration > last.EvalDuration, last.Metrics)
	expect(t, len(last.Context) > 5 && time.Since(last.CreatedAt) < time.Minute, last)
	whole, _ := ask(&no)
	expect(t, whole == streamed, whole)
}

func TestGenerateLoadsAndUnloads(t *testing.T) {
	c, ctx := client(t)
	keep := func(d time.Duration) (reason string) {
		request := &api.GenerateRequest{Model: embedder + "-none", KeepAlive: &api.Duration{Duration: d}}
		status(t, c.Generate(ctx, request, func(api.GenerateResponse) error { return nil }), 404, "not found")
		request.Model = "cria"
		check(t, c.Generate(ctx, request, func(r api.GenerateResponse) error { reason = r.DoneReason; return nil }))
		return
	}
	expect(t, keep(10*time.Minute) == "load")
	running, err := c.ListRunning(ctx)
	check(t, err)
	expect(t, len(running.Models) > 0, running)
	for _, model := range running.Models {
		if model.Name == "cria:latest" {
			expect(t, model.ContextLength > 0 && model.Size > 0 && time.Until(model.ExpiresAt) > 9*time.Minute, model)
		}
	}
	expect(t, keep(0) == "unload")
}

func TestChat(t *testing.T) {
	c, ctx := client(t)
	var text, thinking string
	var last api.ChatResponse
	request := &api.ChatRequest{Model: "cria", Messages: user("What is the capital of France?"), Options: greedy, KeepAlive: &api.Duration{Duration: time.Minute}}
	check(t, c.Chat(ctx, request, func(r api.ChatResponse) error {
		text += r.Message.Content
		thinking += r.Message.Thinking
		last = r
		return nil
	}))
	expect(t, text == "Paris." && thinking != "" && last.Done && last.Message.Role == "assistant", text, thinking, last)
	request.Messages = append(user("x"), api.Message{Role: "bad", Content: "", Images: []api.ImageData{[]byte("GIF")}})
	status(t, c.Chat(ctx, request, func(api.ChatResponse) error { return nil }), 400, "image")
}

func TestChatTellsLogprobs(t *testing.T) {
	c, ctx := client(t)
	request := &api.ChatRequest{Model: "cria", Messages: user("Hi"), Think: noThink, Options: map[string]any{"temperature": 0, "num_predict": 2}, Stream: &no, Logprobs: true, TopLogprobs: 3}
	check(t, c.Chat(ctx, request, func(r api.ChatResponse) error {
		expect(t, len(r.Logprobs) == 2 && len(r.Logprobs[0].TopLogprobs) == 3, r.Logprobs)
		expect(t, r.Logprobs[0].Logprob <= 0 && r.Logprobs[0].Token == r.Logprobs[0].TopLogprobs[0].Token, r.Logprobs)
		return nil
	}))
}

func TestChatOfAForm(t *testing.T) {
	c, ctx := client(t)
	form := json.RawMessage(`{"type":"object","properties":{"capital":{"type":"string"}},"required":["capital"]}`)
	request := &api.ChatRequest{Model: "cria", Messages: user("What is the capital of France?"), Think: noThink, Options: greedy, Stream: &no, Format: form}
	check(t, c.Chat(ctx, request, func(r api.ChatResponse) error {
		var answer map[string]string
		check(t, json.Unmarshal([]byte(r.Message.Content), &answer))
		expect(t, len(answer) == 1 && answer["capital"] != "", answer)
		return nil
	}))
}

func TestChatRendersOnly(t *testing.T) {
	c, ctx := client(t)
	request := &api.ChatRequest{Model: "cria", Messages: user("Hi"), DebugRenderOnly: true, Stream: &no}
	check(t, c.Chat(ctx, request, func(r api.ChatResponse) error {
		expect(t, r.DebugInfo != nil && strings.Contains(r.DebugInfo.RenderedTemplate, "Hi"), r)
		return nil
	}))
}

func TestAToolIsCalledAndItsResultAnswered(t *testing.T) {
	c, ctx := client(t)
	properties := api.NewToolPropertiesMap()
	properties.Set("city", api.ToolProperty{Type: api.PropertyType{"string"}, Description: "The city"})
	weather := api.Tool{Type: "function", Function: api.ToolFunction{
		Name: "get_weather", Description: "Get the weather in a city",
		Parameters: api.ToolFunctionParameters{Type: "object", Required: []string{"city"}, Properties: properties},
	}}
	request := &api.ChatRequest{Model: "cria", Messages: user("What's the weather like in Cairo?"), Tools: api.Tools{weather}, Think: noThink, Options: greedy}
	var calls []api.ToolCall
	check(t, c.Chat(ctx, request, func(r api.ChatResponse) error {
		calls = append(calls, r.Message.ToolCalls...)
		return nil
	}))
	expect(t, len(calls) == 1 && calls[0].Function.Name == "get_weather" && strings.HasPrefix(calls[0].ID, "call_"), calls)
	city, _ := calls[0].Function.Arguments.Get("city")
	expect(t, city == "Cairo", calls[0].Function.Arguments.String())
	request.Messages = append(request.Messages,
		api.Message{Role: "assistant", ToolCalls: calls},
		api.Message{Role: "tool", ToolName: "get_weather", ToolCallID: calls[0].ID, Content: "12 degrees, cloudy"})
	var text string
	check(t, c.Chat(ctx, request, func(r api.ChatResponse) error { text += r.Message.Content; return nil }))
	expect(t, strings.Contains(text, "12"), text)
}

func TestEmbed(t *testing.T) {
	c, ctx := client(t)
	answer, err := c.Embed(ctx, &api.EmbedRequest{Model: embedder, Input: []string{"hello", "world"}, Options: map[string]any{}})
	check(t, err)
	expect(t, len(answer.Embeddings) == 2 && answer.PromptEvalCount > 0 && answer.TotalDuration > 0, answer)
	var squares float64
	for _, x := range answer.Embeddings[0] {
		squares += float64(x) * float64(x)
	}
	expect(t, math.Abs(squares-1) < 1e-4, squares)
	short, err := c.Embed(ctx, &api.EmbedRequest{Model: embedder, Input: "hello", Dimensions: 4})
	check(t, err)
	expect(t, len(short.Embeddings[0]) == 4, short)
	older, err := c.Embeddings(ctx, &api.EmbeddingRequest{Model: embedder, Prompt: "hello"})
	check(t, err)
	expect(t, len(older.Embedding) == len(answer.Embeddings[0]), older)
	_, err = c.Embed(ctx, &api.EmbedRequest{Model: "nothing", Input: "x"})
	status(t, err, 404, "not found, try pulling it first")
}

func TestCreateCopyAndDelete(t *testing.T) {
	c, ctx := client(t)
	var states []string
	note := func(r api.ProgressResponse) error { states = append(states, r.Status); return nil }
	create := &api.CreateRequest{
		Model: "go-made", From: "cria", System: "Say little.", Parameters: map[string]any{"temperature": 0.5, "stop": []string{"x"}},
		License: []string{"MIT"}, Messages: user("Hi"), Template: "{{ .System }} {{ .Prompt }}",
	}
	check(t, c.Create(ctx, create, note))
	expect(t, states[len(states)-1] == "success", states)
	check(t, c.Copy(ctx, &api.CopyRequest{Source: "go-made", Destination: "me/go-copy:v1"}))
	shown, err := c.Show(ctx, &api.ShowRequest{Model: "me/go-copy:v1"})
	check(t, err)
	expect(t, shown.System == "Say little." && strings.HasSuffix(shown.License, "\nMIT") && len(shown.Messages) == 1, shown)
	expect(t, strings.Contains(shown.Parameters, "0.5") && shown.Template == create.Template, shown.Parameters)
	for _, name := range []string{"go-made", "me/go-copy:v1"} {
		check(t, c.Delete(ctx, &api.DeleteRequest{Model: name}))
	}
	status(t, c.Delete(ctx, &api.DeleteRequest{Model: "go-made"}), 404, "model 'go-made' not found")
	status(t, c.Copy(ctx, &api.CopyRequest{Source: "go-made", Destination: "x"}), 404, "not found")
}

func TestCreateFromABlob(t *testing.T) {
	c, ctx := client(t)
	file, err := os.ReadFile(os.Getenv("PUNA_GGUF"))
	check(t, err)
	digest := fmt.Sprintf("sha256:%x", sha256.Sum256(file))
	check(t, c.CreateBlob(ctx, digest, bytes.NewReader(file)))
	check(t, c.CreateBlob(ctx, digest, bytes.NewReader(file)))
	wrong := "sha256:" + strings.Repeat("0", 64)
	status(t, c.CreateBlob(ctx, wrong, bytes.NewReader(file)), 400, "digest mismatch")
	ignore := func(api.ProgressResponse) error { return nil }
	check(t, c.Create(ctx, &api.CreateRequest{Model: "go-uploaded", Files: map[string]string{"model.gguf": digest}}, ignore))
	answer, err := c.Embed(ctx, &api.EmbedRequest{Model: "go-uploaded", Input: "x"})
	check(t, err)
	expect(t, len(answer.Embeddings) == 1, answer)
	check(t, c.Delete(ctx, &api.DeleteRequest{Model: "go-uploaded"}))
}

func TestAModelGoesToARegistryAndComesBack(t *testing.T) {
	c, ctx := client(t)
	name := os.Getenv("PUNA_REGISTRY") + "/go/polite"
	last := ""
	show := func(line api.ProgressResponse) error { last = line.Status; return nil }
	done := func(err error) {
		t.Helper()
		check(t, err)
		expect(t, last == "success", last)
		last = ""
	}
	done(c.Create(ctx, &api.CreateRequest{Model: name, From: "cria", System: "You are polite."}, show))
	done(c.Push(ctx, &api.PushRequest{Model: name, Insecure: true}, show))
	check(t, c.Delete(ctx, &api.DeleteRequest{Model: name}))
	_, err := c.Show(ctx, &api.ShowRequest{Model: name})
	status(t, err, 404, "not found")
	done(c.Pull(ctx, &api.PullRequest{Model: name, Insecure: true}, show))
	shown, err := c.Show(ctx, &api.ShowRequest{Model: name})
	check(t, err)
	expect(t, shown.System == "You are polite.", shown.System)
	check(t, c.Delete(ctx, &api.DeleteRequest{Model: name}))
	err = c.Pull(ctx, &api.PullRequest{Model: os.Getenv("PUNA_REGISTRY") + "/go/absent", Insecure: true}, show)
	expect(t, err != nil && strings.Contains(err.Error(), "file does not exist"), err)
}

func TestPullAndPushFailWithTheReason(t *testing.T) {
	c, ctx := client(t)
	ignore := func(api.ProgressResponse) error { return nil }
	err := c.Pull(ctx, &api.PullRequest{Model: "127.0.0.1:9/library/nothing", Insecure: true}, ignore)
	expect(t, err != nil && err.Error() != "", "a pull from nowhere")
	err = c.Push(ctx, &api.PushRequest{Model: "me/go-nothing"}, ignore)
	expect(t, err != nil && err.Error() != "", "a push of nothing")
}

func TestThereIsNoCloud(t *testing.T) {
	c, ctx := client(t)
	cloud, err := c.CloudStatusExperimental(ctx)
	check(t, err)
	expect(t, cloud.Cloud.Disabled, cloud)
	_, err = c.Whoami(ctx)
	expect(t, err != nil, "an account")
	expect(t, c.Signout(ctx) != nil, "signed out")
	expect(t, c.Disconnect(ctx, "key") != nil, "disconnected")
	expect(t, c.SetAliasExperimental(ctx, &api.AliasRequest{Alias: "a", Target: "cria"}) != nil, "an alias")
	expect(t, c.DeleteAliasExperimental(ctx, &api.AliasDeleteRequest{Alias: "a"}) != nil, "no alias")
}

func TestACallbackEndsAStream(t *testing.T) {
	c, ctx := client(t)
	enough := errors.New("enough")
	request := &api.GenerateRequest{Model: "cria", Prompt: "Write me a long story.", Options: map[string]any{"ignore_eos": true, "num_predict": 4000}}
	err := c.Generate(ctx, request, func(api.GenerateResponse) error { return enough })
	expect(t, errors.Is(err, enough), err)
	leaving, cancel := context.WithCancel(ctx)
	// The client itself takes the end of the connection for that of the stream.
	_ = c.Generate(leaving, request, func(r api.GenerateResponse) error {
		expect(t, !r.Done, "the answer came to its end")
		cancel()
		return nil
	})
	expect(t, leaving.Err() != nil && c.Heartbeat(ctx) == nil, "not cancelled")
}

func TestErrorsCarryTheServersTextAndStatus(t *testing.T) {
	c, ctx := client(t)
	ignore := func(api.GenerateResponse) error { return nil }
	status(t, c.Generate(ctx, &api.GenerateRequest{Model: "nothing", Prompt: "x"}, ignore), 404, "model 'nothing' not found")
	wrong := map[string]any{"temperature": "warm"}
	status(t, c.Generate(ctx, &api.GenerateRequest{Model: "cria", Prompt: "x", Options: wrong}, ignore), 400, "temperature")
	_, err := c.Show(ctx, &api.ShowRequest{})
	status(t, err, 400, "model is required")
}
