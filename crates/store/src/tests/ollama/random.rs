//! Pseudo-random operations of both versions, the same for the same seed.

use std::io;
use std::path::Path;
use std::time::Duration;

use super::{Content, Link, Ollama017, Ollama040, age_blobs};

/// A generator of pseudo-random numbers (xorshift64*).
pub struct Random {
    state: u64,
}

impl Random {
    pub fn new(seed: u64) -> Self {
        // Neighbouring seeds start far apart, and the state is never zero.
        Self { state: (seed ^ 0x9E37_79B9_7F4A_7C15).wrapping_mul(0xBF58_476D_1CE4_E5B9) | 1 }
    }

    pub fn number(&mut self) -> u64 {
        self.state ^= self.state >> 12;
        self.state ^= self.state << 25;
        self.state ^= self.state >> 27;
        self.state.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 16
    }

    /// A number below `limit`, which is above zero.
    pub fn below(&mut self, limit: usize) -> usize {
        (self.number() % limit as u64) as usize
    }

    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len())]
    }

    /// One of a few names, so that operations affect the same models.
    pub fn name(&mut self) -> String {
        let names = [
            "a:latest",
            "b:1",
            "user/a:latest",
            "ollama.com/library/a:latest",
            "registry.ollama.ai/library/b:1",
            "example.org/n/a:2",
        ];
        (*self.pick(&names)).to_owned()
    }

    /// One of a few contents, so that models share blobs.
    pub fn content(&mut self) -> Content {
        Content::sample(self.below(6) as u32)
    }

    /// An operation of either version.
    pub fn operation(&mut self) -> Operation {
        match self.below(13) {
            0 => Operation::Create017(self.name(), self.content()),
            1 => Operation::Pull017(self.name(), self.content()),
            2 => Operation::Copy017(self.name(), self.name()),
            3 => Operation::Remove017(self.name()),
            4 => Operation::Start017,
            5 => Operation::Create040(self.name(), self.content()),
            6 => Operation::PullPlain040(self.name(), self.content()),
            7 => Operation::PullList040(self.name(), self.children(), self.below(8)),
            8 => Operation::PullInlineList040(self.name(), self.children()),
            9 => Operation::Copy040(self.name(), self.name()),
            10 => Operation::Remove040(self.name()),
            11 => Operation::Migrate040(self.name()),
            _ => Operation::Start040(self.below(2) == 0),
        }
    }

    fn children(&mut self) -> Vec<Child> {
        let kinds = [("ggml", "gguf"), ("llamacpp", "gguf"), ("mlx", "safetensors")];
        let first = self.below(kinds.len());
        let count = 1 + self.below(kinds.len());
        let kinds = kinds.iter().cycle().skip(first).take(count);
        kinds.map(|(runner, format)| (*runner, *format, self.content())).collect()
    }
}

/// The runner, the format and the content of a list's child.
type Child = (&'static str, &'static str, Content);

/// An operation of one version on a store.
#[derive(Debug, Clone)]
pub enum Operation {
    Create017(String, Content),
    Pull017(String, Content),
    Copy017(String, String),
    Remove017(String),
    Start017,
    Create040(String, Content),
    PullPlain040(String, Content),
    /// The children with a set bit in the last field are fetched.
    PullList040(String, Vec<Child>, usize),
    PullInlineList040(String, Vec<Child>),
    Copy040(String, String),
    Remove040(String),
    Migrate040(String),
    /// Whether the operation first sets the age of all blobs to two hours.
    Start040(bool),
}

impl Operation {
    /// Runs the operation; a name without a model changes nothing.
    pub fn apply(&self, root: &Path, link: Link) -> io::Result<()> {
        let (old, new) = (Ollama017::new(root), Ollama040::new(root).with_link(link));
        let result = match self {
            Self::Create017(name, content) => old.create(name, content),
            Self::Pull017(name, content) => old.pull(name, content),
            Self::Copy017(from, to) => old.copy(from, to),
            Self::Remove017(name) => old.remove(name),
            Self::Start017 => old.start(),
            Self::Create040(name, content) => new.create(name, content),
            Self::PullPlain040(name, content) => new.pull_plain(name, content),
            Self::PullList040(name, children, fetched) => {
                let fetched: Vec<_> =
                    (0..children.len()).filter(|index| fetched >> index & 1 == 1).collect();
                new.pull_list(name, children, &fetched)
            }
            Self::PullInlineList040(name, children) => new.pull_inline_list(name, children),
            Self::Copy040(from, to) => new.copy(from, to),
            Self::Remove040(name) => new.remove(name),
            Self::Migrate040(name) => new.migrate(name).map(drop),
            Self::Start040(after_hours) => {
                if *after_hours && root.join("blobs").exists() {
                    age_blobs(root, Duration::from_secs(2 * 60 * 60))?;
                }
                new.start()
            }
        };
        result.or_else(
            |error| if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) },
        )
    }
}
