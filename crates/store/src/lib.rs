//! Names, manifests, blobs, Modelfile, create and import drivers; atomic and shared with Ollama.

#![forbid(unsafe_code)]
