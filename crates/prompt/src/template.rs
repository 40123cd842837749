//! A template of either language.

use crate::go::GoTemplate;
use crate::jinja::JinjaTemplate;
use crate::thinking::{self, ThinkTags};
use crate::{Capabilities, PromptError};

/// The two languages of templates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Go's `text/template`, as in a Modelfile's `TEMPLATE`.
    Go,
    /// Jinja, as in a GGUF's `tokenizer.chat_template`.
    Jinja,
}

/// A parsed template; cheap to keep, parse it once a model.
#[derive(Debug, Clone)]
pub enum Template {
    /// Go's `text/template` with Ollama's data.
    Go(GoTemplate),
    /// Jinja with the data of Hugging Face's transformers.
    Jinja(JinjaTemplate),
}

impl Template {
    /// Parses a source.
    pub fn parse(kind: Kind, source: &str) -> Result<Template, PromptError> {
        match kind {
            Kind::Go => GoTemplate::parse(source).map(Template::Go),
            Kind::Jinja => JinjaTemplate::parse(source).map(Template::Jinja),
        }
    }

    /// Which language a source is written in: Jinja if it has `{% … %}` or only parses as Jinja.
    pub fn detect(source: &str) -> Kind {
        if source.contains("{%") && source.contains("%}") {
            return Kind::Jinja;
        }
        match (GoTemplate::parse(source), JinjaTemplate::parse(source)) {
            (Err(_), Ok(_)) => Kind::Jinja,
            _ => Kind::Go,
        }
    }

    /// Its language.
    pub fn kind(&self) -> Kind {
        match self {
            Template::Go(_) => Kind::Go,
            Template::Jinja(_) => Kind::Jinja,
        }
    }

    /// The text it was parsed from.
    pub fn source(&self) -> &str {
        match self {
            Template::Go(go) => go.source(),
            Template::Jinja(jinja) => jinja.source(),
        }
    }

    /// What a model with this template can be asked for.
    pub fn capabilities(&self) -> Capabilities {
        Capabilities::of(self)
    }

    /// The tags around thoughts in the model's output, if the template shows them.
    pub fn think_tags(&self) -> Option<ThinkTags> {
        match self {
            Template::Go(go) => {
                let (open, close) = go.think_tags();
                (!open.is_empty() && !close.is_empty()).then_some(ThinkTags { open, close })
            }
            Template::Jinja(jinja) => thinking::tags_in_jinja(jinja.source()),
        }
    }

    /// The text that opens a tool call in the model's output; known for Go templates.
    pub fn tool_tag(&self) -> Option<String> {
        match self {
            Template::Go(go) => Some(go.tool_tag()),
            Template::Jinja(_) => None,
        }
    }
}
