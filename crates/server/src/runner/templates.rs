//! Templates of models, each parsed once.

use std::sync::{Arc, Mutex};

use puna_prompt::{MessageRules, PromptError, Template, TemplateFormat};

use crate::lock::lock;

/// The template of a model that has none.
pub(crate) const PLAIN_TEMPLATE: &str = "{{ .Prompt }}";

/// Parsed templates that are kept.
const TEMPLATES: usize = 8;

/// Templates of models, which are parsed once. The most recently used is the last.
#[derive(Default)]
pub(super) struct Templates(Mutex<Vec<ParsedTemplate>>);

/// A template that was parsed.
struct ParsedTemplate {
    template: Arc<Template>,
    /// Which messages it accepts, once that was asked.
    rules: Option<MessageRules>,
}

impl Templates {
    pub(super) fn get(
        &self,
        kind: TemplateFormat,
        source: &str,
    ) -> Result<Arc<Template>, PromptError> {
        self.get_or(kind, source, || Template::parse(kind, source))
    }

    /// Which messages a template accepts. That is found out once.
    pub(super) fn rules(&self, template: &Arc<Template>) -> MessageRules {
        let is_same = |known: &&mut ParsedTemplate| Arc::ptr_eq(&known.template, template);
        let found = lock(&self.0).iter_mut().find(is_same).and_then(|known| known.rules);
        found.unwrap_or_else(|| {
            // This takes long, and others do not wait for it.
            let rules = MessageRules::probe(template);
            if let Some(known) = lock(&self.0).iter_mut().find(is_same) {
                known.rules = Some(rules);
            }
            rules
        })
    }

    /// As [`Templates::get`]. While a new template is parsed, which may take long, others can be had.
    fn get_or(
        &self,
        kind: TemplateFormat,
        source: &str,
        parse: impl FnOnce() -> Result<Template, PromptError>,
    ) -> Result<Arc<Template>, PromptError> {
        let is_it = |known: &ParsedTemplate| {
            known.template.format() == kind && known.template.source() == source
        };
        let find = |all: &mut Vec<ParsedTemplate>| {
            let at = all.iter().position(is_it)?;
            let known = all.remove(at);
            let template = known.template.clone();
            all.push(known);
            Some(template)
        };
        if let Some(template) = find(&mut lock(&self.0)) {
            return Ok(template);
        }
        let template = Arc::new(parse()?);
        let mut known = lock(&self.0);
        // Somebody else may have been faster.
        if let Some(template) = find(&mut known) {
            return Ok(template);
        }
        if known.len() == TEMPLATES {
            known.remove(0);
        }
        known.push(ParsedTemplate { template: template.clone(), rules: None });
        Ok(template)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn others_get_their_templates_while_one_is_parsed() {
        let templates = Templates::default();
        let first = templates.get(TemplateFormat::Go, "{{ .Prompt }}").unwrap();
        let slow = templates.get_or(TemplateFormat::Go, "{{ .System }}", || {
            // A lock that was held here would never be had.
            let meanwhile = templates.0.try_lock().map(|known| known.len());
            assert_eq!(meanwhile.unwrap(), 1);
            assert!(Arc::ptr_eq(
                &templates.get(TemplateFormat::Go, "{{ .Prompt }}").unwrap(),
                &first
            ));
            Template::parse(TemplateFormat::Go, "{{ .System }}")
        });
        assert!(Arc::ptr_eq(
            &templates.get(TemplateFormat::Go, "{{ .System }}").unwrap(),
            &slow.unwrap()
        ));
        for i in 0..2 * TEMPLATES {
            templates.get(TemplateFormat::Go, &format!("{i}{{{{ .Prompt }}}}")).unwrap();
        }
        assert_eq!(lock(&templates.0).len(), TEMPLATES);
        // Rules stand beside their template, and go with it.
        let last = templates
            .get(TemplateFormat::Go, &format!("{}{{{{ .Prompt }}}}", 2 * TEMPLATES - 1))
            .unwrap();
        let rules = templates.rules(&last);
        assert_eq!(lock(&templates.0).last().unwrap().rules, Some(rules));
        templates.rules(&first);
        assert_eq!(lock(&templates.0).iter().filter(|known| known.rules.is_some()).count(), 1);
    }
}
