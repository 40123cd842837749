//! Settings of the model registry client.

use std::sync::Arc;

use puna_registry::{Settings, TemplateDetector};
use puna_store::{FileTemplate, NamedTemplate};

use crate::config::Config;
use crate::file_worker::FileWorkerLauncher;
use crate::runner::detect_template;
use crate::version::{OLLAMA_VERSION, VERSION};

/// Registry client settings from the configuration. Files and templates of pulled packages are read
/// in this process; see [`read_in_worker`].
pub fn settings(config: &Config) -> Settings {
    let (arch, system) = (std::env::consts::ARCH, std::env::consts::OS);
    Settings {
        user_agent: format!("ollama/{} ({arch} {system}) puna/{}", OLLAMA_VERSION, VERSION),
        key_file: config.registry_key.clone(),
        streams: config.max_transfer_streams,
        proxies: config.proxies.clone(),
        outgoing: Some(config.outgoing_policy()),
        default_registry: config.registry_default.clone(),
        mirrors: config.registry_mirrors.clone(),
        hosts: config.registry_hosts.clone(),
        docker_config: config.docker_config.clone(),
        limit_rate: config.registry_limit_rate,
        detect_template: Some(Arc::new(InProcessDetector)),
        ..Settings::default()
    }
}

/// Reads files and templates of pulled packages in sandboxed processes.
pub fn read_in_worker(settings: &mut Settings, worker: FileWorkerLauncher) {
    settings.detect_template = Some(Arc::new(worker.clone()));
    settings.executor = Some(Arc::new(worker));
}

/// Renders templates in this process, for servers that cannot start processes.
#[derive(Debug)]
struct InProcessDetector;

impl TemplateDetector for InProcessDetector {
    fn detect(&self, file: &FileTemplate) -> Option<NamedTemplate> {
        detect_template(file)
    }
}

impl TemplateDetector for FileWorkerLauncher {
    fn detect(&self, file: &FileTemplate) -> Option<NamedTemplate> {
        self.detect_template(file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_of_packages_are_rendered_by_the_worker() {
        let folder = tempfile::tempdir().unwrap();
        let mut settings = settings(&Config::with_models(folder.path()));
        let source = "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";
        let file = FileTemplate { source: source.into(), ..FileTemplate::default() };
        let detect = |settings: &Settings| {
            settings.detect_template.as_ref().unwrap().detect(&file).map(|found| found.name)
        };
        assert_eq!(detect(&settings).as_deref(), Some("chatml"));
        // This worker stops before it renders anything.
        read_in_worker(&mut settings, FileWorkerLauncher::of_script("exit 1"));
        assert_eq!(detect(&settings), None);
        assert!(settings.executor.is_some());
    }
}
