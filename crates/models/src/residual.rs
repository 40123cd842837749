//! Residual connections between the parts of layers.

use puna_graph::{Graph, ValueId};

/// Residual stream between layers.
pub struct ResidualStream {
    /// Current value, to which the next part adds.
    pub x: ValueId,
    /// Other values that later parts read.
    pub saved: Vec<ValueId>,
}

/// Part of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LayerPart {
    /// The mixer; the layer has one.
    Mixer,
    /// The feed-forward network.
    FeedForward,
}

/// Residual connections between the parts of layers.
pub trait ResidualConnections: Send + Sync {
    /// Initial stream, from the token embeddings.
    fn begin(&self, _: &mut Graph, x: ValueId) -> ValueId {
        x
    }

    /// Input of a part's norm.
    fn read(&self, g: &mut Graph, stream: &mut ResidualStream, at: (usize, LayerPart)) -> ValueId;

    /// Adds the output of a part to the stream.
    fn write(
        &self,
        g: &mut Graph,
        stream: &mut ResidualStream,
        at: (usize, LayerPart),
        output: ValueId,
    );

    /// Input of the last norm.
    fn end(&self, g: &mut Graph, stream: ResidualStream) -> ValueId;
}

impl ResidualStream {
    /// Keeps the output rows only.
    pub fn gather_outputs(&mut self, g: &mut Graph) {
        let x = g.gather_outputs(self.x);
        for saved in &mut self.saved {
            *saved = if *saved == self.x { x } else { g.gather_outputs(*saved) };
        }
        self.x = x;
    }
}
