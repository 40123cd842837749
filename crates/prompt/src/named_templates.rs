//! Ollama's named templates. When a model is created from a GGUF file without `TEMPLATE`, a known
//! chat template is replaced by its Go counterpart with stop strings (`using autodetected template
//! chatml`).
//!
//! Ollama compares template sources. This module compares what templates write: a Jinja template
//! equals a named one if both render the same conversations to the same text. This finds reworded
//! templates, and a small difference with an effect is never overlooked. The Go sources here are
//! original, written from the prompt layouts.

use crate::{Chat, Message, Template, TemplateFormat, render};

/// A Go template with a name and stop strings.
#[derive(Debug, PartialEq, Eq)]
pub struct NamedTemplate {
    /// The name, as in `using autodetected template NAME`.
    pub name: &'static str,
    /// The Go template.
    pub source: &'static str,
    /// Stop strings, stored as model parameters.
    pub stop: &'static [&'static str],
}

impl NamedTemplate {
    /// Finds a template by name.
    pub fn by_name(name: &str) -> Option<&'static NamedTemplate> {
        NAMED_TEMPLATES.iter().find(|t| t.name == name)
    }

    /// Returns true if `text` is exactly the source of a named template.
    pub(crate) fn is_source(text: &str) -> bool {
        NAMED_TEMPLATES.iter().any(|named| named.source == text)
    }

    /// All named templates.
    pub fn all() -> &'static [NamedTemplate] {
        NAMED_TEMPLATES
    }

    /// Finds the named template that writes the same text as the Jinja template `source`. `bos` and
    /// `eos` are the texts of the model's tokens. Templates with tools or reasoning have no named
    /// counterpart, since that would lose these features.
    ///
    /// A default system text of the Jinja template is ignored in the comparison, as in Ollama.
    pub fn detect(source: &str, bos: &str, eos: &str) -> Option<&'static NamedTemplate> {
        let jinja = Template::parse(TemplateFormat::Jinja, source).ok()?;
        let abilities = jinja.capabilities();
        if abilities.tools || abilities.thinking {
            return None;
        }
        let with_system = probe(true);
        let render_probe = |messages: &[Message]| {
            let chat = Chat { bos, eos, ..Chat::new(messages) };
            render(&jinja, &chat).ok()
        };
        let (messages, expected) = match render_probe(&with_system) {
            Some(text) if text.contains(PROBE_SYSTEM) => (with_system, text),
            _ => {
                let plain = probe(false);
                let text = render_probe(&plain)?;
                (plain, text)
            }
        };
        // With Go templates the tokenizer adds the beginning-of-sequence token. For some models
        // this token is also the mark of the first turn.
        let bare = expected.strip_prefix(bos).unwrap_or(&expected);
        NAMED_TEMPLATES.iter().find(|named| {
            let go = Template::parse(TemplateFormat::Go, named.source).ok();
            let text = go.and_then(|go| render(&go, &Chat::new(&messages)).ok());
            text.is_some_and(|text| text == expected || text == bare)
        })
    }
}

const PROBE_SYSTEM: &str = "Speak of the sea.";

fn probe(with_system: bool) -> Vec<Message> {
    let mut messages = vec![
        Message::new("user", "When is high tide?"),
        Message::new("assistant", "At noon."),
        Message::new("user", "And low tide?"),
    ];
    if with_system {
        messages.insert(0, Message::new("system", PROBE_SYSTEM));
    }
    messages
}

/// Source of a template that writes every message with the prefix and suffix of its role. The last
/// argument is the generation prompt. A trailing assistant message stays open.
macro_rules! turns {
    ([$sys:literal, $sys_end:literal], [$user:literal, $user_end:literal], [$reply:literal, $reply_end:literal], $go:literal) => {
        concat!(
            "{{- range $i, $_ := .Messages }}{{- $last := eq (len (slice $.Messages $i)) 1 }}",
            "{{- if eq .Role \"system\" }}",
            $sys,
            "{{ .Content }}",
            $sys_end,
            "{{ else if eq .Role \"user\" }}",
            $user,
            "{{ .Content }}",
            $user_end,
            "{{ else if eq .Role \"assistant\" }}",
            $reply,
            "{{ .Content }}{{ if not $last }}",
            $reply_end,
            "{{ end }}{{ end }}{{ if and $last (ne .Role \"assistant\") }}",
            $go,
            "{{ end }}{{ end }}"
        )
    };
}

/// Like `turns!`, with system texts inside the next user message: `$sys` before and `$sys_end`
/// behind the text.
macro_rules! turns_with_system_inside {
    ([$sys:literal, $sys_end:literal], [$user:literal, $user_end:literal], [$reply:literal, $reply_end:literal], $go:literal) => {
        concat!(
            "{{- $system := \"\" }}{{- range $i, $_ := .Messages }}",
            "{{- $last := eq (len (slice $.Messages $i)) 1 }}",
            "{{- if eq .Role \"system\" }}{{ $system = .Content }}",
            "{{ else if eq .Role \"user\" }}",
            $user,
            "{{ if $system }}",
            $sys,
            "{{ $system }}",
            $sys_end,
            "{{ $system = \"\" }}{{ end }}{{ .Content }}",
            $user_end,
            "{{ else if eq .Role \"assistant\" }}",
            $reply,
            "{{ .Content }}{{ if not $last }}",
            $reply_end,
            "{{ end }}{{ end }}{{ if and $last (ne .Role \"assistant\") }}",
            $go,
            "{{ end }}{{ end }}"
        )
    };
}

/// The table, most frequent templates first: of two templates with the same output, detection
/// returns the first.
const NAMED_TEMPLATES: &[NamedTemplate] = &[
    NamedTemplate {
        name: "chatml",
        source: turns!(
            ["<|im_start|>system\n", "<|im_end|>\n"],
            ["<|im_start|>user\n", "<|im_end|>\n"],
            ["<|im_start|>assistant\n", "<|im_end|>\n"],
            "<|im_start|>assistant\n"
        ),
        stop: &["<|im_start|>", "<|im_end|>"],
    },
    NamedTemplate {
        name: "llama3-instruct",
        source: turns!(
            ["<|start_header_id|>system<|end_header_id|>\n\n", "<|eot_id|>"],
            ["<|start_header_id|>user<|end_header_id|>\n\n", "<|eot_id|>"],
            ["<|start_header_id|>assistant<|end_header_id|>\n\n", "<|eot_id|>"],
            "<|start_header_id|>assistant<|end_header_id|>\n\n"
        ),
        stop: &["<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"],
    },
    NamedTemplate {
        name: "gemma-instruct",
        source: turns_with_system_inside!(
            ["", "\n"],
            ["<start_of_turn>user\n", "<end_of_turn>\n"],
            ["<start_of_turn>model\n", "<end_of_turn>\n"],
            "<start_of_turn>model\n"
        ),
        stop: &["<start_of_turn>", "<end_of_turn>"],
    },
    NamedTemplate {
        name: "gemma3-instruct",
        source: turns_with_system_inside!(
            ["", "\n\n"],
            ["<start_of_turn>user\n", "<end_of_turn>\n"],
            ["<start_of_turn>model\n", "<end_of_turn>\n"],
            "<start_of_turn>model\n"
        ),
        stop: &["<end_of_turn>"],
    },
    NamedTemplate {
        name: "mistral-instruct",
        source: turns_with_system_inside!(["", "\n\n"], ["[INST] ", "[/INST]"], [" ", "</s>"], ""),
        stop: &["<|im_start|>", "<|im_end|>"],
    },
    NamedTemplate {
        name: "llama2-chat",
        source: turns_with_system_inside!(
            ["<<SYS>>\n", "\n<</SYS>>\n\n"],
            ["{{ if gt $i 1 }}<s>{{ end }}[INST] ", " [/INST]"],
            [" ", " </s>"],
            ""
        ),
        stop: &["[INST]", "[/INST]", "<<SYS>>", "<</SYS>>"],
    },
    NamedTemplate {
        name: "phi-3",
        source: turns!(
            ["<|system|>\n", "<|end|>\n"],
            ["<|user|>\n", "<|end|>\n"],
            ["<|assistant|>\n", "<|end|>\n"],
            "<|assistant|>\n"
        ),
        stop: &["<|end|>", "<|system|>", "<|user|>", "<|assistant|>"],
    },
    NamedTemplate {
        name: "zephyr",
        source: turns!(
            ["<|system|>\n", "</s>\n"],
            ["<|user|>\n", "</s>\n"],
            ["<|assistant|>\n", "</s>\n"],
            "<|assistant|>\n"
        ),
        stop: &["<|system|>", "</s>", "<|user|>", "<|assistant|>"],
    },
    NamedTemplate {
        name: "vicuna",
        source: turns!(["", "\n\n"], ["USER: ", "\n"], ["ASSISTANT: ", "</s>\n"], "ASSISTANT:"),
        stop: &["USER:", "ASSISTANT:"],
    },
    NamedTemplate {
        name: "openchat",
        source: turns!(
            ["GPT4 Correct System: ", "<|end_of_turn|>"],
            ["GPT4 Correct User: ", "<|end_of_turn|>"],
            ["GPT4 Correct Assistant: ", "<|end_of_turn|>"],
            "GPT4 Correct Assistant:"
        ),
        stop: &["<|end_of_turn|>"],
    },
    NamedTemplate {
        name: "solar-instruct",
        source: turns!(
            ["### System:\n", "\n\n"],
            ["### User:\n", "\n\n"],
            ["### Assistant:\n", "</s>\n\n"],
            "### Assistant:\n"
        ),
        stop: &["### System:", "### User:", "### Assistant"],
    },
    NamedTemplate {
        name: "alpaca",
        source: turns!(
            ["", "\n\n"],
            ["### Instruction:\n", "\n\n"],
            ["### Response:\n", "\n\n"],
            "### Response:\n"
        ),
        stop: &["### Instruction:", "### Response"],
    },
    NamedTemplate {
        name: "starcoder2-instruct",
        source: turns!(
            ["", "\n\n"],
            ["### Instruction\n", "\n\n"],
            ["### Response\n", "<|endoftext|>\n\n"],
            "### Response\n"
        ),
        stop: &["### Instruction", "### Response", "<|endoftext|>"],
    },
    NamedTemplate {
        name: "magicoder",
        source: turns!(
            ["", "\n\n"],
            ["@@ Instruction\n", "\n\n"],
            ["@@ Response\n", "\n\n"],
            "@@ Response\n"
        ),
        stop: &["@@ Instruction", "@@ Response"],
    },
    NamedTemplate {
        name: "granite-instruct",
        source: turns!(
            ["System:\n", "\n\n"],
            ["Question:\n", "\n\n"],
            ["Answer:\n", "\n\n"],
            "Answer:\n"
        ),
        stop: &["System:", "Question:", "Answer:"],
    },
    NamedTemplate {
        name: "chatqa",
        source: turns!(
            ["System: ", "\n\n"],
            ["User: ", "\n\n"],
            ["Assistant: ", "\n\n"],
            "Assistant:"
        ),
        stop: &["System:", "User:", "Assistant:", "<|begin_of_text|>"],
    },
    NamedTemplate {
        name: "falcon-instruct",
        source: turns!(["System: ", "\n"], ["User:\n", "\n"], ["Falcon:\n", "\n"], "Falcon:\n"),
        stop: &["User:", "Assistant:"],
    },
    NamedTemplate {
        name: "codellama-70b-instruct",
        source: turns!(
            ["Source: system\n\n ", " <step> "],
            ["Source: user\n\n ", " <step> "],
            ["Source: assistant\nDestination: user\n\n ", " <step> "],
            "Source: assistant\nDestination: user\n\n "
        ),
        stop: &["Source:", "Destination:", "<step>"],
    },
    NamedTemplate {
        name: "command-r",
        source: turns!(
            ["<|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>", "<|END_OF_TURN_TOKEN|>"],
            ["<|START_OF_TURN_TOKEN|><|USER_TOKEN|>", "<|END_OF_TURN_TOKEN|>"],
            ["<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>", "<|END_OF_TURN_TOKEN|>"],
            "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>"
        ),
        stop: &["<|START_OF_TURN_TOKEN|>", "<|END_OF_TURN_TOKEN|>"],
    },
    NamedTemplate {
        name: "alfred",
        source: turns!(
            ["<start_system>", "<end_message>"],
            ["<start_user>", "<end_message>"],
            ["<start_assistant>", "<end_message>"],
            "<start_assistant>"
        ),
        stop: &["<start_system>", "<end_message>", "<start_user>", "<start_assistant>"],
    },
];
