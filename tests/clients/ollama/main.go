// Pulls or pushes a model with the code of Ollama's server: `transfer pull|push NAME`, with its store and key in HOME.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"

	"github.com/ollama/ollama/api"

	"puna-ollama/server"
)

func main() {
	show := func(line api.ProgressResponse) { json.NewEncoder(os.Stdout).Encode(line) }
	work := server.Pull
	if os.Args[1] == "push" {
		work = server.Push
	}
	if err := work(context.Background(), os.Args[2], show); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
