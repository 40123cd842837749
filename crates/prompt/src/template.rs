//! A parsed template in Go or Jinja, or a built-in renderer.

use crate::go::GoTemplate;
use crate::jinja::JinjaTemplate;
use crate::renderers::Renderer;
use crate::thinking::{self, ThinkTags};
use crate::{Capabilities, PromptError};

/// The template languages, and built-in renderers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TemplateFormat {
    /// Go's `text/template`, as in a Modelfile's `TEMPLATE`.
    Go,
    /// Jinja, as in a GGUF's `tokenizer.chat_template`.
    Jinja,
    /// Name of a built-in renderer, as in a Modelfile's `RENDERER`.
    BuiltIn,
}

/// A parsed template. Parse it once for each model.
#[derive(Debug, Clone)]
pub enum Template {
    /// Go's `text/template` with the data of Ollama.
    Go(GoTemplate),
    /// Jinja with the data of Hugging Face transformers.
    Jinja(JinjaTemplate),
    /// A built-in renderer.
    BuiltIn(Renderer),
}

impl Template {
    /// Parses a template source. For [`TemplateFormat::BuiltIn`], `source` is the name of a
    /// renderer.
    pub fn parse(format: TemplateFormat, source: &str) -> Result<Template, PromptError> {
        match format {
            TemplateFormat::Go => GoTemplate::parse(source).map(Template::Go),
            TemplateFormat::Jinja => JinjaTemplate::parse(source).map(Template::Jinja),
            TemplateFormat::BuiltIn => Renderer::by_name(source).map(Template::BuiltIn),
        }
    }

    /// Detects the language of a source: Jinja if it contains `{% … %}` or parses only as Jinja.
    pub fn detect(source: &str) -> TemplateFormat {
        if source.contains("{%") && source.contains("%}") {
            return TemplateFormat::Jinja;
        }
        match (GoTemplate::parse(source), JinjaTemplate::parse(source)) {
            (Err(_), Ok(_)) => TemplateFormat::Jinja,
            _ => TemplateFormat::Go,
        }
    }

    /// The language of the template.
    pub fn format(&self) -> TemplateFormat {
        match self {
            Template::Go(_) => TemplateFormat::Go,
            Template::Jinja(_) => TemplateFormat::Jinja,
            Template::BuiltIn(_) => TemplateFormat::BuiltIn,
        }
    }

    /// The source text, or the name of the renderer.
    pub fn source(&self) -> &str {
        match self {
            Template::Go(go) => go.source(),
            Template::Jinja(jinja) => jinja.source(),
            Template::BuiltIn(renderer) => renderer.name(),
        }
    }

    /// Features of a model with this template.
    pub fn capabilities(&self) -> Capabilities {
        match self {
            Template::Go(go) => Capabilities::of_go(go, self.think_tags().is_some()),
            Template::Jinja(jinja) => Capabilities::of_jinja(jinja.source()),
            Template::BuiltIn(renderer) => renderer.capabilities(),
        }
    }

    /// The tags around reasoning in the model's output, if the template contains them.
    pub fn think_tags(&self) -> Option<ThinkTags> {
        match self {
            Template::Go(go) => {
                let (open, close) = go.think_tags();
                (!open.is_empty() && !close.is_empty()).then_some(ThinkTags { open, close })
            }
            Template::Jinja(jinja) => thinking::tags_in_jinja(jinja.source()),
            Template::BuiltIn(renderer) => renderer.think_tags(),
        }
    }

    /// Returns true if the template tells the model a requested reasoning effort.
    pub fn has_think_levels(&self) -> bool {
        match self {
            Template::Go(_) => self.source().contains("ThinkLevel"),
            Template::Jinja(_) => ["reasoning_effort", "thinking_budget"]
                .iter()
                .any(|name| self.source().contains(name)),
            Template::BuiltIn(renderer) => {
                let name = renderer.name();
                matches!(name, "glimmer" | "harmony" | "qwen3.8") || name.starts_with("nemotron")
            }
        }
    }

    /// The text that starts a tool call in the model's output; only known for Go templates.
    pub fn tool_tag(&self) -> Option<String> {
        match self {
            Template::Go(go) => Some(go.tool_tag()),
            Template::Jinja(_) | Template::BuiltIn(_) => None,
        }
    }

    /// Text of the beginning-of-sequence token that a built-in renderer writes itself. A tokenizer
    /// that adds this token must not add it twice. Empty for templates, which read
    /// [`crate::Chat::bos`].
    pub fn leading_bos(&self) -> &'static str {
        match self {
            Template::Go(_) | Template::Jinja(_) => "",
            Template::BuiltIn(renderer) => renderer.leading_bos(),
        }
    }
}
