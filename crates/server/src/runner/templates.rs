//! Cache of parsed chat templates.

use std::sync::{Arc, Mutex};

use puna_mirror::{SharedTable, TableLimit};
use puna_prompt::{MessageRules, PromptError, Template, TemplateFormat};

use crate::util::lock::lock;

/// Template of a model without one.
pub(crate) const PLAIN_TEMPLATE: &str = "{{ .Prompt }}";

/// Maximum number of cached templates.
const MAX_CACHED_TEMPLATES: usize = 8;

/// Description of [`TemplateCache`].
pub(crate) static PARSED_TEMPLATES: SharedTable = SharedTable {
    name: "parsed templates of a runner",
    holders: &["puna_server::runner::templates::TemplateCache"],
    limits: &[TableLimit::Entries(MAX_CACHED_TEMPLATES)],
    shares: &[TableLimit::Rule("none: what is missing is parsed again")],
    when_full: "the least recently used is dropped",
    test: "a_client_with_many_templates_does_not_hide_one_of_another",
};

/// Cache of parsed templates; the most recently used one is last.
#[derive(Default)]
pub(super) struct TemplateCache(Mutex<Vec<CachedTemplate>>);

/// Parsed template.
struct CachedTemplate {
    template: Arc<Template>,
    /// Rules for the messages that the template accepts, once computed.
    rules: Option<MessageRules>,
}

impl TemplateCache {
    pub(super) fn get(
        &self,
        kind: TemplateFormat,
        source: &str,
    ) -> Result<Arc<Template>, PromptError> {
        self.get_or_parse(kind, source, || Template::parse(kind, source))
    }

    /// Returns the rules for the messages that a template accepts; computes them once.
    pub(super) fn rules(&self, template: &Arc<Template>) -> MessageRules {
        let is_same = |cached: &&mut CachedTemplate| Arc::ptr_eq(&cached.template, template);
        let found = lock(&self.0).iter_mut().find(is_same).and_then(|cached| cached.rules);
        found.unwrap_or_else(|| {
            // The cache is not locked here, because probing takes long.
            let rules = MessageRules::probe(template);
            if let Some(cached) = lock(&self.0).iter_mut().find(is_same) {
                cached.rules = Some(rules);
            }
            rules
        })
    }

    /// As [`TemplateCache::get`], with a given parser. The cache is not locked while the parser
    /// runs, because that may take long.
    fn get_or_parse(
        &self,
        kind: TemplateFormat,
        source: &str,
        parse: impl FnOnce() -> Result<Template, PromptError>,
    ) -> Result<Arc<Template>, PromptError> {
        let is_same_source = |cached: &CachedTemplate| {
            cached.template.format() == kind && cached.template.source() == source
        };
        let find = |all: &mut Vec<CachedTemplate>| {
            let at = all.iter().position(is_same_source)?;
            let cached = all.remove(at);
            let template = cached.template.clone();
            all.push(cached);
            Some(template)
        };
        if let Some(template) = find(&mut lock(&self.0)) {
            return Ok(template);
        }
        let template = Arc::new(parse()?);
        let mut cached = lock(&self.0);
        // Another thread may have parsed the same template.
        if let Some(template) = find(&mut cached) {
            return Ok(template);
        }
        if cached.len() == MAX_CACHED_TEMPLATES {
            cached.remove(0);
        }
        cached.push(CachedTemplate { template: template.clone(), rules: None });
        Ok(template)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_with_many_templates_does_not_hide_one_of_another() {
        let templates = TemplateCache::default();
        let get = |source: &str| templates.get(TemplateFormat::Go, source).unwrap();
        let other = get("{{ .Prompt }}");
        (0..2 * MAX_CACHED_TEMPLATES).for_each(|i| drop(get(&format!("{i}{{{{ .Prompt }}}}"))));
        // It is parsed again, and then found.
        let again = get("{{ .Prompt }}");
        assert!(!Arc::ptr_eq(&again, &other) && Arc::ptr_eq(&again, &get("{{ .Prompt }}")));
    }

    #[test]
    fn cached_templates_are_available_while_another_one_is_parsed() {
        let templates = TemplateCache::default();
        let first = templates.get(TemplateFormat::Go, "{{ .Prompt }}").unwrap();
        let slow = templates.get_or_parse(TemplateFormat::Go, "{{ .System }}", || {
            // If `get_or_parse` held the lock here, `try_lock` would fail.
            let cached_while_parsing = templates.0.try_lock().map(|cached| cached.len());
            assert_eq!(cached_while_parsing.unwrap(), 1);
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
        for i in 0..2 * MAX_CACHED_TEMPLATES {
            templates.get(TemplateFormat::Go, &format!("{i}{{{{ .Prompt }}}}")).unwrap();
        }
        assert_eq!(lock(&templates.0).len(), MAX_CACHED_TEMPLATES);
        // Rules are stored with their template and removed with it.
        let last = templates
            .get(TemplateFormat::Go, &format!("{}{{{{ .Prompt }}}}", 2 * MAX_CACHED_TEMPLATES - 1))
            .unwrap();
        let rules = templates.rules(&last);
        assert_eq!(lock(&templates.0).last().unwrap().rules, Some(rules));
        templates.rules(&first);
        assert_eq!(lock(&templates.0).iter().filter(|cached| cached.rules.is_some()).count(), 1);
    }
}
