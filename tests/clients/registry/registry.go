//go:build tools

// Names what is built here, so that its versions and sums are known.
package registry

import (
	_ "github.com/opencontainers/distribution-spec/conformance"
	_ "oras.land/oras/cmd/oras"
)
