//! The KV cache: pages, the prefix tree, window pages, and state checkpoints.
//!
//! `page_pool` has the prefix tree: lookup, insertion and eviction; `node` has its nodes.
//! `sequence_pages` has the pages of one sequence.

mod lru_list;
mod node;
mod page_pool;
mod sequence_pages;
mod state_checkpoints;
mod state_slots;
mod window_pages;
mod windows;

pub use node::{CacheCopy, CacheScope, NodeId, PAGE_TOKENS, Page, PrefixTreeKey};
pub use page_pool::PagePool;
pub use sequence_pages::SequencePages;
pub use windows::Windows;
