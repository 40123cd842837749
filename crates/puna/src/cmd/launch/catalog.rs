//! Models recommended for coding agents: the list in `models.json`, and the selection of those that
//! fit a machine.

use serde::Deserialize;

/// Largest window, in tokens, that may use all memory left by the weights. Longer ones may use half
/// of this memory, as in the server's memory plan.
const FULL_MEMORY_WINDOW: u64 = 32_768;

/// Bytes reserved for other uses, in addition to a tenth of the memory.
const RESERVED_BYTES: u64 = 1 << 30;

/// Smallest window, in tokens, that the server plans.
const MIN_WINDOW: u64 = 4096;

/// A recommended model.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Suggestion {
    /// Name in Ollama's registry.
    pub name: String,
    /// Download size in bytes, rounded.
    pub size: u64,
    /// Context length of the training, in tokens.
    pub context: u64,
    /// Bytes of KV cache per token, in 16-bit floating point.
    pub cache_per_token: u64,
    /// Recommended use and machines.
    pub purpose: String,
}

impl Suggestion {
    /// Window of the model, in tokens, on a machine with `memory` bytes; `None` if the model does
    /// not fit.
    pub fn window(&self, memory: u64) -> Option<u64> {
        self.window_beside(
            memory.checked_sub(memory / 10)?.checked_sub(RESERVED_BYTES)?.checked_sub(self.size)?,
        )
    }

    /// Largest window with a KV cache that fits in `free` bytes.
    fn window_beside(&self, free: u64) -> Option<u64> {
        let mut window = self.context;
        loop {
            let max = if window > FULL_MEMORY_WINDOW { free / 2 } else { free };
            if window.saturating_mul(self.cache_per_token) <= max {
                return Some(window);
            }
            if window <= MIN_WINDOW {
                return None;
            }
            window = (window.next_power_of_two() / 2).max(MIN_WINDOW);
        }
    }
}

/// The list, in ascending order of size.
pub fn suggestions() -> Vec<Suggestion> {
    serde_json::from_str(include_str!("models.json"))
        .unwrap_or_else(|error| unreachable!("models.json: {error}"))
}

/// Models with a window of at least `min` tokens in `memory` bytes, the largest first, with their
/// windows.
pub fn fitting(memory: u64, min: u64) -> Vec<(Suggestion, u64)> {
    let with_window = |model: Suggestion| {
        let window = model.window(memory).filter(|window| *window >= min)?;
        Some((model, window))
    };
    suggestions().into_iter().rev().filter_map(with_window).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes per gigabyte.
    const GB: u64 = 1_000_000_000;

    #[test]
    fn the_largest_fitting_model_is_suggested_first() {
        let best =
            |memory: u64| fitting(memory * GB, 32_768).first().map(|(model, _)| model.name.clone());
        let expected = [
            (2, None),
            (4, Some("granite4:micro-h")),
            (8, Some("qwen3.5:4b")),
            (16, Some("qwen3.5:9b")),
            (24, Some("gpt-oss:20b")),
            (32, Some("qwen3.5:35b")),
            (64, Some("qwen3-coder-next")),
            (96, Some("gpt-oss:120b")),
        ];
        for (memory, name) in expected {
            assert_eq!(best(memory).as_deref(), name, "{memory} GB");
        }
    }

    #[test]
    fn the_catalog_is_sorted_by_size_and_its_values_are_plausible() {
        let list = suggestions();
        assert!(list.is_sorted_by_key(|model| model.size));
        for model in list {
            assert!(
                model.size > GB && model.context >= 65_536 && model.cache_per_token >= 1024,
                "{model:?}"
            );
            assert!(!model.purpose.is_empty() && !model.name.contains(' '), "{model:?}");
        }
    }

    #[test]
    fn context_windows_follow_the_memory_plan() {
        let model = Suggestion {
            name: "m".into(),
            size: 4 * GB,
            context: 131_072,
            cache_per_token: 100_000,
            purpose: String::new(),
        };
        let window = |free: f64| model.window_beside((free * 1e9) as u64);
        assert_eq!((window(0.0), window(0.4)), (None, None));
        assert_eq!(window(1.0), Some(8192));
        assert_eq!(window(4.0), Some(32_768));
        assert_eq!(window(8.0), Some(32_768), "a longer one would leave less than half free");
        assert_eq!(window(14.0), Some(65_536));
        assert_eq!(window(60.0), Some(131_072));
        assert_eq!(model.window(4 * GB), None);
    }
}
