// Package store reads the folder of models at $PUNA_STORE with the code by which Ollama 0.17 reads its own.
package store

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/ollama/ollama/manifest"
	"github.com/ollama/ollama/types/model"
)

const (
	config  = "application/vnd.docker.container.image.v1+json"
	weights = "application/vnd.ollama.image.model"
)

// expected is what the folder holds, in $PUNA_STORE_EXPECTED.
type expected struct {
	// Models maps the full name of each model to the digest of its weights.
	Models map[string]string `json:"models"`
	// Removed is the full name of the model that the test removes.
	Removed string `json:"removed"`
	// Freed are the digests of the blobs that no other model needs.
	Freed []string `json:"freed"`
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestStoreOfPuna(t *testing.T) {
	root := os.Getenv("PUNA_STORE")
	if root == "" {
		t.Skip("PUNA_STORE names no folder of models")
	}
	t.Setenv("OLLAMA_MODELS", root)
	var want expected
	check(t, json.Unmarshal([]byte(os.Getenv("PUNA_STORE_EXPECTED")), &want))
	// A manifest that Ollama cannot read is an error here, where Ollama itself would skip it.
	found, err := manifest.Manifests(false)
	check(t, err)

	t.Run("Names", func(t *testing.T) {
		names := make([]string, 0, len(found))
		for name := range found {
			names = append(names, name.String())
		}
		slices.Sort(names)
		if wanted := slices.Sorted(maps.Keys(want.Models)); !slices.Equal(names, wanted) {
			t.Fatalf("found %v, expected %v", names, wanted)
		}
	})

	t.Run("Layers", func(t *testing.T) {
		for name, m := range found {
			if m.Config.MediaType != config {
				t.Errorf("%s: config of type %q", name, m.Config.MediaType)
			}
			var digests []string
			for _, layer := range append(slices.Clone(m.Layers), m.Config) {
				checkLayer(t, name, layer)
				if layer.MediaType == weights {
					digests = append(digests, layer.Digest)
				}
			}
			// Layers that only keep blobs alive are no weights.
			if wanted := want.Models[name.String()]; !slices.Equal(digests, []string{wanted}) {
				t.Errorf("%s: weights %v, expected %s", name, digests, wanted)
			}
		}
	})

	t.Run("Config", func(t *testing.T) {
		for name, m := range found {
			blob, err := m.Config.Open()
			check(t, err)
			var parsed model.ConfigV2
			err = json.NewDecoder(blob).Decode(&parsed)
			blob.Close()
			check(t, err)
			if parsed.ModelFormat != "gguf" {
				t.Errorf("%s: format %q", name, parsed.ModelFormat)
			}
		}
	})

	t.Run("RemoveUnusedLayers", func(t *testing.T) {
		before := blobs(t, root)
		for _, digest := range before {
			// Ollama keeps a layer that a manifest of its folder names.
			layer := manifest.Layer{Digest: digest}
			check(t, layer.Remove())
		}
		if after := blobs(t, root); !slices.Equal(before, after) {
			t.Fatalf("%d blobs before, %d after", len(before), len(after))
		}
	})

	t.Run("RemoveModel", func(t *testing.T) {
		before := blobs(t, root)
		m, err := manifest.ParseNamedManifest(model.ParseName(want.Removed))
		check(t, err)
		check(t, m.Remove())
		check(t, m.RemoveLayers())
		kept := slices.DeleteFunc(before, func(digest string) bool { return slices.Contains(want.Freed, digest) })
		if after := blobs(t, root); !slices.Equal(kept, after) {
			t.Fatalf("expected %v, found %v", kept, after)
		}
	})
}

// checkLayer fails unless the blob of a layer has its size and digest.
func checkLayer(t *testing.T, name model.Name, layer manifest.Layer) {
	t.Helper()
	blob, err := layer.Open()
	if err != nil {
		t.Errorf("%s: %v", name, err)
		return
	}
	defer blob.Close()
	sum := sha256.New()
	size, err := io.Copy(sum, blob)
	check(t, err)
	if digest := fmt.Sprintf("sha256:%x", sum.Sum(nil)); size != layer.Size || digest != layer.Digest {
		t.Errorf("%s: %s has %d bytes and the digest %s, expected %d", name, layer.Digest, size, digest, layer.Size)
	}
}

// blobs are the digests of the files in the folder of blobs.
func blobs(t *testing.T, root string) []string {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(root, "blobs"))
	check(t, err)
	var digests []string
	for _, entry := range entries {
		digests = append(digests, strings.Replace(entry.Name(), "-", ":", 1))
	}
	return digests
}
