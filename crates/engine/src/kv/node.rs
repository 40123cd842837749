//! Pages, and the nodes of the prefix tree.

use std::sync::Arc;

use puna_graph::AdapterScales;

use crate::request::{CacheNamespace, PublicPrefix};

/// Tokens per page.
pub const PAGE_TOKENS: usize = 64;

/// Number of a node of the prefix tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct NodeId(pub(super) usize);

/// A page: memory for the keys and values of its tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Page {
    /// Page of layers without a window.
    pub full: u32,
    /// Window page, if the model has layers with a window and it is not released.
    pub window: Option<u32>,
}

/// A node of the prefix tree.
#[derive(Debug)]
pub(super) struct Node {
    pub page: u32,
    /// Namespace whose sequences find the page.
    pub namespace: CacheNamespace,
    pub window: Option<WindowPage>,
    /// Tokens of the page; only leaves can have less than a full page.
    pub tokens: Vec<u32>,
    /// Page before, or root.
    pub parent: Parent,
    pub children: Vec<NodeId>,
    /// State checkpoints within the page.
    pub checkpoints: Vec<StateCheckpoint>,
    /// Number of running sequences that pin the page.
    pub pin_count: usize,
}

/// Everything that keys and values depend on besides tokens; each key has its own tree.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct PrefixTreeKey {
    /// Adapter scales.
    pub adapter_scales: AdapterScales,
    /// The whole prompt, if an encoder has read it, since its result for the first token depends on
    /// the last; else empty.
    pub encoder_input: Arc<[u32]>,
}

/// Cached pages that a sequence finds and adds: pages of its namespace, and pages of a public
/// prefix, which several namespaces share.
///
/// A sequence finds nothing of other namespaces, so neither its cached tokens nor its prefill time
/// tell whether another client has sent a text.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CacheScope {
    /// Key of the prefix tree.
    pub key: PrefixTreeKey,
    /// Namespace of all pages behind the public prefix.
    pub namespace: CacheNamespace,
    /// Public prefix; only its whole pages are shared.
    pub public_prefix: PublicPrefix,
}

impl CacheScope {
    /// Namespace of the page with this index in the sequence.
    pub(super) fn namespace_of_page(&self, index: usize) -> CacheNamespace {
        match (index + 1) * PAGE_TOKENS <= self.public_prefix.tokens {
            true => self.public_prefix.namespace,
            false => self.namespace,
        }
    }

    /// Whether pages that are not in the tree yet may be shared with a sequence of `other`.
    pub(super) fn shares_with(&self, other: &Self) -> bool {
        self.key == other.key && self.namespace == other.namespace
    }
}

/// Parent of a page in the tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Parent {
    /// The page before.
    Node(NodeId),
    /// Root of the tree with this key.
    Root(PrefixTreeKey),
}

/// A copy within the caches of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CacheCopy {
    /// A whole page, with its window page if both pages have one.
    Page { from: Page, to: Page },
    /// A recurrent state, by slots.
    State { from: u32, to: u32 },
}

/// Window page of a node.
#[derive(Debug)]
pub(super) struct WindowPage {
    pub page: u32,
    /// Number of running sequences that pin it.
    pub pin_count: usize,
    /// Whether other sequences are likely to continue here (end of a prompt, divergence); evicted
    /// last.
    pub evict_last: bool,
}

/// A state checkpoint of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct StateCheckpoint {
    /// Position in the page: number of tokens before it.
    pub tokens: usize,
    pub slot: u32,
}

/// Cached prefix of a prompt.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Match {
    /// Full pages, in order.
    pub path: Vec<NodeId>,
    /// Page that continues the prompt with its first tokens, and the number of these tokens.
    pub partial: Option<(NodeId, usize)>,
    /// State checkpoint after these tokens, if the model has recurrent layers.
    pub state: Option<u32>,
    /// Tokens matched in the tree before the match is cut back to a state checkpoint and present
    /// window pages; 0 for models with full attention only.
    pub matched_tokens: usize,
}

impl Match {
    /// Length of the prefix in tokens.
    pub fn tokens(&self) -> usize {
        self.path.len() * PAGE_TOKENS + self.partial.map_or(0, |(_, tokens)| tokens)
    }
}
