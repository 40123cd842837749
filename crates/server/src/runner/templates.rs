//! Templates of models, each parsed once.

use std::sync::{Arc, Mutex};

use puna_prompt::{Kind, MessageRules, PromptError, Template};

use crate::lock::lock;

/// The template of a model that has none.
pub(crate) const PLAIN_TEMPLATE: &str = "{{ .Prompt }}";

/// Parsed templates that are kept.
const TEMPLATES: usize = 8;

/// Templates of models, which are parsed once.
#[derive(Default)]
pub(super) struct Templates {
    /// The most recently used last.
    known: Mutex<Vec<Arc<Template>>>,
    /// The rules of the most recently used ones, by their addresses.
    rules: Mutex<Vec<(Arc<Template>, MessageRules)>>,
}

impl Templates {
    pub(super) fn get(&self, kind: Kind, source: &str) -> Result<Arc<Template>, PromptError> {
        self.get_or(kind, source, || Template::parse(kind, source))
    }

    /// Which messages a template accepts. That is found out once.
    pub(super) fn rules(&self, template: &Arc<Template>) -> MessageRules {
        let known =
            lock(&self.rules).iter().find(|(of, _)| Arc::ptr_eq(of, template)).map(|(_, rules)| *rules);
        if let Some(rules) = known {
            return rules;
        }
        let found = MessageRules::of(template);
        let mut rules = lock(&self.rules);
        if rules.len() == TEMPLATES {
            rules.remove(0);
        }
        rules.push((template.clone(), found));
        found
    }

    /// As [`Templates::get`]. While a new template is parsed, which may take long, others can be had.
    fn get_or(
        &self,
        kind: Kind,
        source: &str,
        parse: impl FnOnce() -> Result<Template, PromptError>,
    ) -> Result<Arc<Template>, PromptError> {
        let find = |known: &mut Vec<Arc<Template>>| {
            let at = known.iter().position(|t| t.kind() == kind && t.source() == source)?;
            let template = known.remove(at);
            known.push(template.clone());
            Some(template)
        };
        if let Some(template) = find(&mut lock(&self.known)) {
            return Ok(template);
        }
        let template = Arc::new(parse()?);
        let mut known = lock(&self.known);
        // Somebody else may have been faster.
        if let Some(template) = find(&mut known) {
            return Ok(template);
        }
        if known.len() == TEMPLATES {
            known.remove(0);
        }
        known.push(template.clone());
        Ok(template)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn others_get_their_templates_while_one_is_parsed() {
        let templates = Templates::default();
        let first = templates.get(Kind::Go, "{{ .Prompt }}").unwrap();
        let slow = templates.get_or(Kind::Go, "{{ .System }}", || {
            // A lock that was held here would never be had.
            let meanwhile = templates.known.try_lock().map(|known| known.len());
            assert_eq!(meanwhile.unwrap(), 1);
            assert!(Arc::ptr_eq(&templates.get(Kind::Go, "{{ .Prompt }}").unwrap(), &first));
            Template::parse(Kind::Go, "{{ .System }}")
        });
        assert!(Arc::ptr_eq(&templates.get(Kind::Go, "{{ .System }}").unwrap(), &slow.unwrap()));
        for i in 0..2 * TEMPLATES {
            templates.get(Kind::Go, &format!("{i}{{{{ .Prompt }}}}")).unwrap();
        }
        assert_eq!(lock(&templates.known).len(), TEMPLATES);
    }
}
