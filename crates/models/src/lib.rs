//! Model architectures, one file each: hyper-parameters, weights by name, the graph.

#![forbid(unsafe_code)]
