//! Ollama's named templates.

use crate::{Chat, Message, NamedTemplate, Template, TemplateFormat, prefer_jinja, render};

/// Like the template of SmolLM2: ChatML with a default system text.
const CHATML_WITH_DEFAULT: &str = "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}\
    {{ '<|im_start|>system\nYou help.<|im_end|>\n' }}{% endif %}\
    {{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}\
    {% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

#[test]
fn all_twenty_names_of_ollama_parse_and_have_stop_strings() {
    assert_eq!(NamedTemplate::all().len(), 20);
    for named in NamedTemplate::all() {
        let template =
            Template::parse(TemplateFormat::Go, named.source).expect("a named template parses");
        assert!(!named.stop.is_empty(), "{}", named.name);
        let messages = [
            Message::new("system", "S"),
            Message::new("user", "U"),
            Message::new("assistant", "A"),
        ];
        let text = render(&template, &Chat::new(&messages)).expect("a named template renders");
        // A trailing assistant message stays open.
        assert!(
            text.ends_with('A') && text.contains('S') && text.contains('U'),
            "{}: {text}",
            named.name
        );
    }
}

#[test]
fn chatml_renders_its_documented_layout() {
    let named = NamedTemplate::by_name("chatml").expect("there is chatml");
    let template = Template::parse(TemplateFormat::Go, named.source).expect("it parses");
    let messages = [Message::new("system", "S"), Message::new("user", "U")];
    let text = render(&template, &Chat::new(&messages)).expect("it renders");
    assert_eq!(
        text,
        "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU<|im_end|>\n<|im_start|>assistant\n"
    );
}

#[test]
fn a_template_is_recognised_by_its_output() {
    let named = |source: &str, eos: &str| NamedTemplate::detect(source, "<s>", eos).map(|t| t.name);
    assert_eq!(named(CHATML_WITH_DEFAULT, "<|im_end|>"), Some("chatml"));
    // The beginning-of-sequence token of SmolLM2 is also the start of its turns.
    let found = NamedTemplate::detect(CHATML_WITH_DEFAULT, "<|im_start|>", "<|im_end|>");
    assert_eq!(found.map(|t| t.name), Some("chatml"));
    let llama3 = "{% for m in messages %}{% set c = '<|start_header_id|>' + m['role'] + '<|end_header_id|>\n\n'+ \
        m['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}{% set c = bos_token + c %}{% endif %}{{ c }}\
        {% endfor %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}";
    assert_eq!(named(llama3, "<|eot_id|>"), Some("llama3-instruct"));
    let gemma = "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}\
        {% endif %}{% for m in messages %}{% if (m['role'] == 'assistant') %}{% set role = 'model' %}{% else %}\
        {% set role = m['role'] %}{% endif %}{{ '<start_of_turn>' + role + '\n' + m['content'] | trim + '<end_of_turn>\n' }}\
        {% endfor %}{% if add_generation_prompt %}{{'<start_of_turn>model\n'}}{% endif %}";
    assert_eq!(named(gemma, "<eos>"), Some("gemma-instruct"));
    let zephyr = "{% for m in messages %}{{ '<|' + m['role'] + '|>\n' + m['content'] + eos_token + '\n' }}{% endfor %}\
        {{ '<|assistant|>\n' }}";
    assert_eq!(named(zephyr, "</s>"), Some("zephyr"));
}

#[test]
fn the_template_of_a_file_is_preferred_to_its_detected_named_template() {
    let jinja = Template::parse(TemplateFormat::Jinja, CHATML_WITH_DEFAULT).expect("it parses");
    let named = NamedTemplate::detect(CHATML_WITH_DEFAULT, "", "").expect("it is chatml");
    let found = Template::parse(TemplateFormat::Go, named.source).expect("it parses");
    assert!(prefer_jinja(&jinja, &found));
    let chosen = Template::parse(TemplateFormat::Go, "<|im_start|>{{ .Prompt }}<|im_end|>")
        .expect("it parses");
    assert!(!prefer_jinja(&jinja, &chosen));
}

#[test]
fn other_templates_and_templates_with_more_features_are_not_recognized() {
    let named = |source: &str| NamedTemplate::detect(source, "", "").map(|t| t.name);
    assert_eq!(named("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"), None);
    assert_eq!(named(&format!("{CHATML_WITH_DEFAULT}{{% if tools %}}{{% endif %}}")), None);
    assert_eq!(named("{% broken"), None);
}
