// Package server is a door to what Ollama's package of this name keeps for itself. The files beside this one are Ollama's; `build`
// takes them from its module.
package server

import (
	"context"

	"github.com/ollama/ollama/api"
)

// Pull fetches a model into the store, by plain HTTP.
func Pull(ctx context.Context, name string, show func(api.ProgressResponse)) error {
	return PullModel(ctx, name, &registryOptions{Insecure: true}, show)
}

// Push sends a model to the registry of its name, by plain HTTP.
func Push(ctx context.Context, name string, show func(api.ProgressResponse)) error {
	return PushModel(ctx, name, &registryOptions{Insecure: true}, show)
}
