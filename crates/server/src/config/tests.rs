//! Sources of settings, and errors of invalid values.

use super::*;

fn config(variables: &[(&str, &str)]) -> Config {
    let given =
        |name: &str| variables.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned());
    let find = |name: &str| given(name).or_else(|| (name == "HOME").then(|| "/home/me".to_owned()));
    Config::from_variables(find).unwrap()
}

#[test]
fn values_are_trimmed_and_punas_names_take_precedence() {
    let c = config(&[
        ("OLLAMA_MODELS", " \"/a b\" "),
        ("OLLAMA_MAX_QUEUE", "'7'"),
        ("PUNA_MAX_QUEUE", "9"),
    ]);
    assert_eq!((c.models.as_path(), c.max_queue), (Path::new("/a b"), 9));
}

#[test]
fn bad_numbers_and_times_leave_the_default_and_a_warning() {
    let c = config(&[
        ("OLLAMA_MAX_QUEUE", "x"),
        ("OLLAMA_KEEP_ALIVE", "soon"),
        ("OLLAMA_LOAD_TIMEOUT", "never"),
    ]);
    assert_eq!((c.max_queue, c.keep_alive), (512, KeepAlive::For(Duration::from_secs(300))));
    assert_eq!(c.load_timeout, Some(Duration::from_secs(300)));
    let warnings: Vec<String> = c.warnings.iter().map(Warning::to_string).collect();
    assert_eq!(warnings.len(), 3);
    for variable in ["OLLAMA_MAX_QUEUE", "OLLAMA_KEEP_ALIVE", "OLLAMA_LOAD_TIMEOUT"] {
        let about = warnings.iter().find(|text| text.starts_with(&format!("{variable} is ")));
        assert!(
            about.is_some_and(|text| text.contains("it must be a")),
            "{variable}: {warnings:?}"
        );
    }
}

#[test]
fn a_warning_names_the_variable_that_was_read() {
    let c = config(&[
        ("OLLAMA_NUM_PARALLEL", "4"),
        ("PUNA_NUM_PARALLEL", "many"),
        ("OLLAMA_HOST", "h:x"),
    ]);
    let warnings: Vec<String> = c.warnings.iter().map(Warning::to_string).collect();
    assert_eq!(
        warnings,
        [
            r#"OLLAMA_HOST has the port "x": it must be a number from 0 to 65535; using 11434"#,
            r#"PUNA_NUM_PARALLEL is "many": it must be a whole number of at least 0; using the default"#,
        ]
    );
}

#[test]
fn without_a_home_the_models_directory_is_an_error() {
    assert_eq!(config(&[("HOME", "/h")]).models, Path::new("/h/.ollama/models"));
    match Config::from_variables(|name| (name == "HOME").then(String::new)) {
        Ok(config) => assert!(config.models.is_absolute(), "{:?}", config.models),
        Err(error) => assert_eq!(error, ConfigError::NoHome),
    }
}

#[test]
fn times_are_seconds_or_durations_and_negative_ones_are_unlimited() {
    assert_eq!(config(&[("OLLAMA_KEEP_ALIVE", "-1")]).keep_alive, KeepAlive::Forever);
    assert_eq!(
        config(&[("OLLAMA_KEEP_ALIVE", "10m")]).keep_alive,
        KeepAlive::For(Duration::from_secs(600))
    );
    assert_eq!(config(&[("OLLAMA_LOAD_TIMEOUT", "0")]).load_timeout, None);
    assert_eq!(
        config(&[("OLLAMA_LOAD_TIMEOUT", "90")]).load_timeout,
        Some(Duration::from_secs(90))
    );
    assert_eq!(
        config(&[("PUNA_STEP_TIMEOUT", "1h")]).step_timeout,
        Some(Duration::from_secs(3600))
    );
}

#[test]
fn a_certificate_implies_https_unless_the_address_has_a_scheme() {
    let both = [("PUNA_TLS_CERTIFICATE", "/c.pem"), ("PUNA_TLS_KEY", "/k.pem")];
    let c = config(&both);
    assert_eq!(c.address.url(), "https://127.0.0.1:11434");
    assert_eq!(c.tls, Some(TlsFiles { certificate: "/c.pem".into(), key: "/k.pem".into() }));
    let plain = config(&[&both[..], &[("OLLAMA_HOST", "http://h:1")]].concat());
    assert_eq!(plain.address.url(), "http://h:1");
    let half = Config::from_variables(|name| (name == "PUNA_TLS_KEY").then(|| "/k.pem".to_owned()));
    let text = half.unwrap_err().to_string();
    assert_eq!(text, "tls.key is set (PUNA_TLS_KEY), but tls.certificate is not: TLS needs both");
}

#[test]
fn file_values_overridden_by_variables_are_checked_too() {
    let file = "max_queue = \"banana\"\ntls.key = \"/k.pem\"";
    let tls = ("PUNA_TLS_CERTIFICATE", "/c.pem");
    for flags in [&[][..], &[("max_queue", "4")][..]] {
        let error =
            with_file(file, &[("PUNA_MAX_QUEUE", "3"), tls], flags).unwrap_err().to_string();
        assert!(error.contains("puna.toml, line 1: max_queue"), "{error}");
    }
    let whole =
        with_file("max_queue = 5\ntls.key = \"/k.pem\"", &[("OLLAMA_MAX_QUEUE", "3"), tls], &[])
            .unwrap();
    assert!(whole.max_queue == 3 && whole.tls.is_some());
}

#[test]
fn image_urls_are_off_by_default() {
    let c = config(&[]);
    assert!(!c.image_urls && c.image_hosts.is_empty());
    let c =
        config(&[("PUNA_IMAGE_URLS", "1"), ("PUNA_IMAGE_HOSTS", "intra.example, 10.0.0.7:8080,")]);
    assert!(c.image_urls && c.image_hosts == ["intra.example", "10.0.0.7:8080"]);
    let file = "image_urls = true\nimage_hosts = [\"a\", \"b:1\"]";
    let c = with_file(file, &[], &[]).unwrap();
    assert!(c.image_urls && c.image_hosts == ["a", "b:1"]);
    assert!(!with_file(file, &[], &[("image_urls", "false")]).unwrap().image_urls);
    for wrong in ["a b", "http://x", "*", "x:99999", "/", "x:", ":1", "[::1", "::1"] {
        let refused = with_file(&format!("\nimage_hosts = [\"ok\", {wrong:?}]"), &[], &[])
            .unwrap_err()
            .to_string();
        assert!(
            refused.contains(", line 2: image_hosts has ") && refused.contains(wrong),
            "{refused}"
        );
    }
    let several = [("PUNA_IMAGE_HOSTS", "a-b.c_d:80,[::1]:8080,[fe80::1],10.0.0.1")];
    assert_eq!(config(&several).image_hosts.len(), 4);
    let unclear = with_file("", &[("PUNA_IMAGE_URLS", "never")], &[]).unwrap_err().to_string();
    assert!(unclear.starts_with("PUNA_IMAGE_URLS is \"never\": it must be on"), "{unclear}");
}

#[test]
fn switches_accept_common_words_and_others_are_on_with_a_warning() {
    for on in ["1", "true", "TRUE", "t", "yes", "On"] {
        assert!(config(&[("PUNA_DETERMINISTIC", on)]).deterministic, "{on}");
    }
    for off in ["0", "False", "F", "no", "off", "OFF"] {
        let c = config(&[
            ("PUNA_DETERMINISTIC", off),
            ("OLLAMA_GO_TEMPLATE", off),
            ("OLLAMA_DEBUG", off),
        ]);
        assert_eq!((c.deterministic, c.go_template, c.debug), (false, Some(false), 0), "{off}");
        assert_eq!(c.warnings, []);
    }
    let c = config(&[
        ("PUNA_DETERMINISTIC", "always"),
        ("OLLAMA_NOPRUNE", "2"),
        ("OLLAMA_GO_TEMPLATE", "any text"),
    ]);
    assert_eq!((c.deterministic, c.no_prune, c.go_template), (true, true, Some(true)));
    let warned: Vec<&str> = c.warnings.iter().map(|warning| warning.variable.as_str()).collect();
    assert_eq!(warned, ["OLLAMA_GO_TEMPLATE", "OLLAMA_NOPRUNE", "PUNA_DETERMINISTIC"]);
    let text = r#"is "always": it must be on (1, true, yes) or off (0, false, no); using on"#;
    assert_eq!(c.warnings[2].text, text);
    for (debug, level) in [("2", 2), ("3", 2), ("true", 1), ("on", 1), ("any text", 1)] {
        assert_eq!(config(&[("OLLAMA_DEBUG", debug)]).debug, level, "{debug}");
    }
}

/// A configuration from a file with this text and some variables.
fn with_file(
    text: &str,
    variables: &[(&str, &str)],
    flags: &[(&'static str, &str)],
) -> Result<Config, ConfigError> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("puna").join("puna.toml");
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(&path, text).unwrap();
    let home = folder.path().display().to_string();
    let given =
        |name: &str| variables.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned());
    let find = |name: &str| {
        given(name).or_else(|| matches!(name, "HOME" | "XDG_CONFIG_HOME").then(|| home.clone()))
    };
    let flags: Vec<_> = flags.iter().map(|(key, value)| (*key, (*value).to_owned())).collect();
    Config::read(&flags, &find, None)
}

#[test]
fn the_command_line_overrides_variables_which_override_the_file() {
    let file = "# ours\nmax_queue = 3\nkeep_alive = \"10m\"\ndeterministic = true\nhost = \"h:1\"\norigins = [\"http://a\", \"http://b\"]\n";
    let c =
        with_file(file, &[("OLLAMA_KEEP_ALIVE", "20m"), ("PUNA_HOST", "h:2")], &[("host", "h:3")])
            .unwrap();
    assert_eq!((c.max_queue, c.deterministic, c.address.port), (3, true, 3));
    assert_eq!(c.keep_alive, KeepAlive::For(Duration::from_secs(1200)));
    assert!(
        c.origins.allows("http://a")
            && c.origins.allows("http://b")
            && !c.origins.allows("http://c")
    );
    let setting = |key| c.settings.iter().find(|s| s.key == key).unwrap();
    let shown = |key| (setting(key).value.clone().unwrap_or_default(), setting(key).source.clone());
    assert_eq!(shown("max_queue"), ("3".into(), Source::File(c.file.clone().unwrap(), 2)));
    assert_eq!(
        shown("keep_alive"),
        ("\"20m0s\"".into(), Source::Variable("OLLAMA_KEEP_ALIVE".into()))
    );
    assert_eq!(shown("host"), ("\"h:3\"".into(), Source::Flag));
    assert_eq!(shown("load_timeout"), ("\"5m0s\"".into(), Source::Default));
}

#[test]
fn shown_settings_form_an_equivalent_file() {
    let variables = [
        ("OLLAMA_HOST", "0.0.0.0:99"),
        ("OLLAMA_KEEP_ALIVE", "-1"),
        ("PUNA_THREADS", "3"),
        ("PUNA_LOAD_TIMEOUT", "0"),
        ("PUNA_TLS_CERTIFICATE", "/c"),
        ("PUNA_TLS_KEY", "/k"),
    ];
    let c = with_file("", &variables, &[]).unwrap();
    assert_eq!(
        c.settings.iter().map(|s| s.key).collect::<Vec<_>>(),
        setting_keys::keys().collect::<Vec<_>>()
    );
    let line = |s: &Setting| s.value.as_ref().map(|value| format!("{} = {value}\n", s.key));
    let file: String = c.settings.iter().filter_map(line).collect();
    let again = with_file(&file, &[], &[]).unwrap();
    let values = |c: &Config| c.settings.iter().map(|s| s.value.clone()).collect::<Vec<_>>();
    assert_eq!(values(&again), values(&c));
    assert_eq!(
        (again.keep_alive, again.load_timeout, again.threads),
        (KeepAlive::Forever, None, Some(3))
    );
    let grouped = with_file("[tls]\nkey = \"/k\"\ncertificate = \"/c\"", &[], &[]).unwrap();
    assert!(again.tls.is_some() && again.tls == grouped.tls);
}

#[test]
fn mistakes_in_the_file_are_errors_that_name_the_line() {
    let cases = [
        ("foo = 1", "line 1: unknown setting \"foo\": `puna config` lists the settings"),
        ("\nmax_que = 3", "line 2: unknown setting \"max_que\": did you mean \"max_queue\"?"),
        ("OLLAMA_HOST = \"x\"", "line 1: unknown setting \"OLLAMA_HOST\": did you mean \"host\"?"),
        ("wombat = 1", "line 1: unknown setting \"wombat\": `puna config` lists the settings"),
        ("[tls]\nkay = \"x\"", "line 2: unknown setting \"tls.kay\": did you mean \"tls.key\"?"),
        ("tls = \"x\"", "line 1: unknown setting \"tls\""),
        ("[server]\nhost = \"x\"", "line 1: unknown setting \"server\""),
        (
            "max_queue = \"many\"",
            "line 1: max_queue is \"many\": it must be a whole number of at least 0",
        ),
        (
            "max_queue = 1.5",
            "line 1: max_queue is a number with a fraction: it must be a string, a whole number, true or false",
        ),
        ("max_queue = -1", "line 1: max_queue is \"-1\""),
        ("threads = 0x10", "line 1: threads is a number that is not decimal"),
        ("origins = [1]", "line 1: origins is a list with an item"),
        (
            "origins = [\"https://a\", \"wombat\"]",
            "line 1: origins is \"https://a,wombat\": bad origin \"wombat\"",
        ),
        (
            "speculate = 1",
            "line 1: speculate is \"1\": it must be one of auto, off, ngram, always, or the name",
        ),
        ("speculate = \"atuo\"", "line 1: speculate is \"atuo\": did you mean \"auto\"?"),
        ("speculate = \"a b\"", "line 1: speculate is \"a b\": it must be one of"),
        (
            "speculate = \"/nowhere/draft.gguf\"",
            "line 1: speculate is \"/nowhere/draft.gguf\": the file does not exist",
        ),
        ("host = 5", "line 1: host is a number: it must be a string in quotes"),
        (
            "host = \"h:123456\"",
            "line 1: host has the port \"123456\": it must be a number from 0 to 65535",
        ),
        ("host = \"ftp://h\"", "line 1: host begins with ftp://: it must be http:// or https://"),
        (
            "host = \"two words\"",
            "line 1: host has the host \"two words\": it must be a host name or IP address",
        ),
        (
            "\nkernels = \"quantum\"",
            "line 2: kernels is \"quantum\": this machine has no kernel level",
        ),
        (
            "kv_cache_type = \"q3\"",
            "line 1: kv_cache_type is \"q3\": it must be one of f32, f16, bf16, q8_0, q4_0",
        ),
        ("models = [\"/a\", \"/b\"]", "line 1: models is a list: it must be a string in quotes"),
        (
            "context_length = 5000000000",
            "line 1: context_length is \"5000000000\": it must be a whole number",
        ),
        ("max_transfer_streams = 65", "it must be a whole number from 0 to 64"),
        ("debug = 3", "line 1: debug is \"3\": it must be 0, 1 or 2"),
        ("api_key = \"two words\"", "line 1: api_key has blanks"),
        ("tls.key = \"/k\"", "line 1), but tls.certificate is not"),
        ("host = {a = 1}", "line 1: host is a table"),
        ("keep_alive = \"soon\"", "line 1: keep_alive is \"soon\": it must be a time"),
        ("deterministic = \"maybe\"", "line 1: deterministic is \"maybe\""),
        ("\n\nhost = ", "line 3: "),
        ("host = \"a\"\nhost = \"b\"", "line 2: "),
    ];
    for (text, want) in cases {
        let error = with_file(text, &[], &[]).unwrap_err().to_string();
        assert!(error.contains("puna.toml, line ") && error.contains(want), "{text}: {error}");
        let end = ["using", "counts"].iter().any(|word| error.contains(word));
        assert!(!end, "nothing is done instead of what is refused: {error}");
    }
    let error =
        with_file("", &[("PUNA_CONFIG", "/nowhere/puna.toml")], &[]).unwrap_err().to_string();
    assert!(
        error.starts_with("cannot read the configuration file /nowhere/puna.toml: "),
        "{error}"
    );
    let error = with_file("", &[], &[("max_queue", "x")]).unwrap_err().to_string();
    assert!(error.starts_with("the setting max_queue is \"x\""), "{error}");
}

#[test]
fn no_password_of_an_address_is_shown() {
    let mirrors = "registry.mirrors = [\"http://u:hunter2@a:5000\", \"b\"]";
    for (file, variable) in [
        (mirrors, ("PUNA_DEBUG", "0")),
        ("", ("OLLAMA_HOST", "http://u:hunter2@127.0.0.1:1")),
        ("", ("PUNA_REGISTRY_DEFAULT", "http://u:hunter2@h")),
        ("", ("PUNA_REGISTRY_MIRRORS", "https://u:hunter2@h:5000,b")),
        ("", ("PUNA_MIRROR_STORAGE", "s3://u:hunter2@h/b")),
        ("", ("PUNA_REMOTES", "http://u:hunter2@h")),
    ] {
        let shown = match with_file(file, &[variable], &[]) {
            Ok(c) => format!("{:?} {:?}", c.settings, c.warnings),
            Err(error) => error.to_string(),
        };
        assert!(!shown.contains("hunter2"), "{shown}");
    }
}

#[test]
fn invalid_values_without_a_safe_default_are_errors_in_variables_too() {
    for (variable, value, want) in [
        (
            "OLLAMA_KV_CACHE_TYPE",
            "q3_0",
            "OLLAMA_KV_CACHE_TYPE is \"q3_0\": it must be one of f32,",
        ),
        (
            "PUNA_KERNELS",
            "quantum",
            "PUNA_KERNELS is \"quantum\": this machine has no kernel level `quantum`; it has portable",
        ),
        ("OLLAMA_HOST", "ftp://h", "OLLAMA_HOST begins with ftp://: "),
        (
            "OLLAMA_ORIGINS",
            "wombat",
            "OLLAMA_ORIGINS is \"wombat\": bad origin \"wombat\": origins must contain",
        ),
        ("PUNA_API_KEY", "a\nb", "PUNA_API_KEY has blanks"),
    ] {
        let error = with_file("", &[(variable, value)], &[]).unwrap_err().to_string();
        assert!(error.starts_with(want), "{error}");
    }
    let c = config(&[("PUNA_SPECULATE", "of"), ("OLLAMA_HOST", "h:x")]);
    let warnings: Vec<String> = c.warnings.iter().map(Warning::to_string).collect();
    assert!(warnings[0].ends_with("65535; using 11434"), "{warnings:?}");
    assert!(
        warnings[1].starts_with("PUNA_SPECULATE is \"of\": did you mean \"off\"?"),
        "{warnings:?}"
    );
    assert!(warnings[1].ends_with("; using auto"), "{warnings:?}");
}

#[test]
fn a_tilde_is_the_home_folder_in_files_and_variables() {
    let c = config(&[("OLLAMA_MODELS", "~/my models"), ("PUNA_KEYS", "~")]);
    assert_eq!(
        (c.models.as_path(), c.keys.as_path()),
        (Path::new("/home/me/my models"), Path::new("/home/me"))
    );
    assert_eq!(config(&[("OLLAMA_MODELS", "/~/a~b")]).models, Path::new("/~/a~b"));
    let text = "models = \"~/m\"\nkeys = \"~/k\"\ntls.key = \"~/t/k\"\ntls.certificate = \"~/t/c\"";
    let c = with_file(text, &[], &[]).unwrap();
    let home = c.models.parent().unwrap();
    assert!(home.is_absolute() && c.models.ends_with("m"), "{:?}", c.models);
    let tls = TlsFiles { certificate: home.join("t/c"), key: home.join("t/k") };
    assert_eq!((&c.keys, c.tls.as_ref()), (&home.join("k"), Some(&tls)));
    let shown = c.settings.iter().find(|setting| setting.key == "models").unwrap().value.clone();
    assert_eq!(
        shown,
        Some(effective::quoted(&home.join("m").display().to_string())),
        "where it is, not what was written"
    );
    let named = Config::from_variables(|name| match name {
        "HOME" => Some("/home/me".into()),
        "PUNA_CONFIG" => Some("~/p.toml".into()),
        _ => None,
    });
    let text = named.unwrap_err().to_string();
    assert!(text.starts_with("cannot read the configuration file /home/me/p.toml: "), "{text}");
}

/// Variables in the first column of the table in docs/reference/settings.md.
fn documented_variables() -> Vec<String> {
    let manual = include_str!("../../../../docs/reference/settings.md");
    let rows = manual
        .lines()
        .filter(|line| line.starts_with("| `OLLAMA_") || line.starts_with("| `PUNA_"));
    let first = rows.filter_map(|row| row.split('|').nth(1));
    first.flat_map(|cell| cell.split('`').skip(1).step_by(2)).map(str::to_owned).collect()
}

#[test]
fn the_manual_has_every_setting_and_no_other() {
    let documented_variables = documented_variables();
    let without_prefix =
        |name: &str| name.trim_start_matches("PUNA_").trim_start_matches("OLLAMA_").to_owned();
    let names: Vec<String> = documented_variables.iter().map(|name| without_prefix(name)).collect();
    let variables: Vec<String> =
        setting_keys::keys().map(|key| key.to_uppercase().replace('.', "_")).collect();
    for variable in &variables {
        assert!(names.contains(variable), "docs/reference/settings.md has no row for {variable}");
    }
    for name in &names {
        assert!(
            variables.contains(name),
            "docs/reference/settings.md has a row for {name}, which is no setting"
        );
    }
}

#[test]
fn single_registries_have_their_own_settings() {
    let text = r#"
        [registry]
        mirrors = ["http://m:5000", "harbor.example/p"]
        limit_rate = "20MB"
        [registry.hosts."Mirror.Example:5000"]
        http = true
        username = "ci"
        password_env = "SECRET"
        streams = 2
        [registry.hosts."hf.co"]
        mirrors = ["m:6"]
    "#;
    let c = with_file(text, &[("SECRET", "s3cret"), ("HF_TOKEN", "hf_x")], &[]).unwrap();
    assert_eq!(c.registry_mirrors, ["http://m:5000", "harbor.example/p"]);
    assert_eq!((c.registry_limit_rate, c.registry_default.as_deref()), (Some(20_000_000), None));
    let host = c.registry_hosts.get("mirror.example:5000").unwrap();
    assert_eq!((host.http, host.streams), (true, Some(2)));
    let password = puna_registry::Secret::Text("s3cret".into());
    let basic = puna_registry::Credentials::Basic { user: "ci".into(), password };
    assert_eq!(host.credentials, Some(basic));
    let hub = c.registry_hosts.get("hf.co").unwrap();
    assert_eq!(hub.mirrors, ["m:6"]);
    assert!(hub.credentials.is_some(), "the hub's token stands beside what the file sets");
    assert!(
        !format!("{c:?}").contains("s3cret") && !format!("{c:?}").contains("hf_x"),
        "nothing shows a secret"
    );
    let keys =
        [("PUNA_API_KEY", "k-1"), ("PUNA_REMOTES", "gpu:1"), ("PUNA_REMOTE_KEYS", "gpu:1=k-2")];
    let c = with_file("", &[&keys[..], &[("https_proxy", "http://me:k-3@proxy:8")]].concat(), &[])
        .unwrap();
    let shown = format!("{c:?}");
    assert!(
        !["k-1", "k-2", "k-3"].iter().any(|key| shown.contains(key)) && shown.contains("proxy:8"),
        "{shown}"
    );
}

#[test]
fn shown_registry_settings_are_equivalent_without_secrets() {
    let text = "[registry.hosts.\"b:5\"]\nhttp = true\nusername = \"ci\"\npassword = \"s3cret\"\nstreams = 2\n\
                [registry.hosts.a]\nmirrors = [\"m:1\", \"m:2\"]\ntoken_env = \"T\"\nlimit_rate = \"2MB\"\n";
    let c = with_file(text, &[("T", "t0ken"), ("HF_TOKEN", "hf_x")], &[]).unwrap();
    let shown = |host: usize| {
        let table = &c.host_settings[host];
        let pairs = table.settings.iter().map(|s| (s.key, s.value.as_deref().unwrap_or("-")));
        (table.host.as_str(), pairs.collect::<Vec<_>>())
    };
    assert_eq!(
        shown(0),
        (
            "b:5",
            vec![("http", "true"), ("username", "\"ci\""), ("password", "-"), ("streams", "2")]
        )
    );
    let mirrors = ("mirrors", "\"m:1,m:2\"");
    assert_eq!(shown(1), ("a", vec![mirrors, ("token_env", "\"T\""), ("limit_rate", "\"2MB\"")]));
    assert_eq!(shown(2), ("hf.co", vec![("token_env", "\"HF_TOKEN\"")]));
    assert_eq!(c.host_settings[0].settings[3].source, Source::File(c.file.clone().unwrap(), 5));
    assert_eq!(c.host_settings[2].settings[0].source, Source::Variable("HF_TOKEN".into()));
    let own = "[registry.hosts.\"hf.co\"]\nanonymous = true\n";
    let c = with_file(own, &[("HF_TOKEN", "hf_x")], &[]).unwrap();
    assert_eq!(c.host_settings[0].settings.len(), 1, "nothing is shown that is not used");
}

#[test]
fn errors_of_registry_settings_name_the_line() {
    let wrong = |lines: &str| {
        let text = format!("[registry.hosts.h]\n{lines}\n");
        with_file(&text, &[], &[]).unwrap_err().to_string()
    };
    for (lines, want) in [
        ("htp = true", "line 2: unknown host setting \"htp\""),
        ("tokn = \"t\"", "line 2: unknown host setting \"tokn\": did you mean \"token\"?"),
        ("wombat = 1", "line 2: unknown host setting \"wombat\": use one of http, ca,"),
        ("http = 3", "line 2: http is \"3\": it must be true or false"),
        ("username = \"u\"", "line 1: username is set without a password"),
        ("password = \"p\"", "line 1: password is set without a username"),
        (
            "token = \"t\"\ntoken_file = \"f\"",
            "line 3: set only one of token, token_file and token_env",
        ),
        (
            "token_env = \"NOT_SET\"",
            "line 2: token_env is \"NOT_SET\", but this variable is not set",
        ),
        ("limit_rate = \"fast\"", "line 2: limit_rate is \"fast\": it must be bytes per second"),
        ("streams = 0", "line 2: streams is \"0\": it must be a whole number from 1 to 64"),
    ] {
        assert!(wrong(lines).contains(want), "{lines}: {}", wrong(lines));
    }
    let text = with_file("[registry.hosts]\nh = 1", &[], &[]).unwrap_err().to_string();
    assert!(text.contains("must be a table"), "{text}");
    let text = with_file("[registry]\nmirrors = [\"a b\"]", &[], &[]).unwrap_err().to_string();
    assert!(text.contains("registry.mirrors has \"a b\""), "{text}");
}

#[test]
fn upstreams_are_registry_hosts() {
    let set = |hosts: &str| with_file(&format!("[mirror]\nupstreams = [{hosts}]"), &[], &[]);
    let all =
        set(r#""registry.ollama.ai", "hub:5000", "10.0.0.1:5000""#).unwrap().mirror.upstreams.hosts;
    assert_eq!(all, ["registry.ollama.ai", "hub:5000", "10.0.0.1:5000"]);
    for bad in ["hub", "[::1]:5000", "https://hf.co", "hf.co/user", "*"] {
        let text = set(&format!("{bad:?}")).unwrap_err().to_string();
        assert!(
            text.contains(&format!("mirror.upstreams has {bad:?}: use a registry host")),
            "{text}"
        );
    }
}

#[test]
fn the_manual_has_every_setting_of_a_host() {
    let manual = include_str!("../../../../docs/guide/registry.md");
    for (key, _) in super::host_keys::HOST_SETTINGS {
        assert!(manual.contains(&format!("`{key}`")), "docs/guide/registry.md has no {key}");
    }
}

#[test]
fn the_mode_of_model_files_is_octal_and_must_be_valid() {
    let c = with_file("store_mode = \"0640\"", &[], &[]).unwrap();
    assert_eq!(c.store_mode, "0640".parse().ok());
    let c = with_file("", &[("PUNA_STORE_MODE", "664")], &[]).unwrap();
    assert_eq!(c.store_mode.map(|mode| mode.to_string()).as_deref(), Some("0664"));
    assert_eq!(with_file("", &[], &[]).unwrap().store_mode, None);
    let refused = with_file("store_mode = \"0666\"", &[], &[]).unwrap_err().to_string();
    assert!(
        refused.contains("line 1: store_mode is \"0666\": it must be one of 0600"),
        "{refused}"
    );
}

#[test]
fn search_paths_are_absolute() {
    let c = with_file("search_paths = [\"/srv/models\", \"~/more\"]", &[("HOME", "/home/me")], &[])
        .unwrap();
    assert_eq!(c.search_paths, [Path::new("/srv/models"), Path::new("/home/me/more")]);
    let c = config(&[("PUNA_SEARCH_PATHS", "/a, /b ,")]);
    assert_eq!(c.search_paths, [Path::new("/a"), Path::new("/b")]);
    let refused = with_file("\nsearch_paths = \"here\"", &[], &[]).unwrap_err().to_string();
    assert!(refused.contains("line 2: search_paths has \"here\""), "{refused}");
    let file = tempfile::NamedTempFile::new().unwrap();
    let variable = ("PUNA_SEARCH_PATHS", file.path().to_str().unwrap());
    let refused =
        Config::from_variables(|name| (name == variable.0).then(|| variable.1.to_owned()));
    let refused = refused.unwrap_err().to_string();
    assert!(
        refused.starts_with("PUNA_SEARCH_PATHS has ") && refused.contains("is a file"),
        "{refused}"
    );
}

#[test]
fn quotas_limit_bytes_and_objects() {
    let text = r#"
        [mirror]
        quotas = ["team-*=200GB", "anna=1.5MB:20", "*=1TB: 5000"]
    "#;
    let c = with_file(text, &[], &[]).unwrap();
    let quotas: Vec<_> =
        c.mirror.quotas.iter().map(|of| (&*of.namespaces, of.bytes, of.objects)).collect();
    let default = puna_mirror::DEFAULT_QUOTA_OBJECTS;
    let expected = [
        ("team-*", 200_000_000_000, default),
        ("anna", 1_500_000, 20),
        ("*", 1_000_000_000_000, 5000),
    ];
    assert_eq!(quotas, expected);
    for bad in ["a=1MB:", "a=1MB:x", "a=1MB:-1", "a=:5", "a:5", "a=1MB:1:2"] {
        let variables = [("PUNA_MIRROR_QUOTAS", bad)];
        let refused = with_file("", &variables, &[]).unwrap_err().to_string();
        assert!(refused.contains("bytes and objects"), "{bad}: {refused}");
    }
}

#[test]
fn retention_and_fetch_settings_are_lists() {
    let text = r#"
        [mirror]
        retention = ["team-*=last:5 keep:latest", "library=pulled:4w"]
        fetch = ["library", "hf.co/user/*"]
        fetch_limit = "40GB"
        fetch_parallel = 4
    "#;
    let c = with_file(text, &[], &[]).unwrap();
    let rules: Vec<String> = c.mirror.retention.iter().map(ToString::to_string).collect();
    assert_eq!(rules, ["team-*=last:5 keep:latest", "library=pulled:28d"]);
    let upstreams = &c.mirror.upstreams;
    assert_eq!(upstreams.fetch, ["library", "hf.co/user/*"]);
    assert_eq!((upstreams.fetch_limit, upstreams.fetch_parallel), (Some(40_000_000_000), Some(4)));
    // Settings that grant access or delete data have no fallback.
    for (variable, value) in [
        ("PUNA_MIRROR_RETENTION", "library=pulled:soon"),
        ("PUNA_MIRROR_FETCH", "lib rary"),
        ("PUNA_MIRROR_FETCH_LIMIT", "large"),
        ("PUNA_MIRROR_FETCH_PARALLEL", "0"),
    ] {
        let error = with_file("", &[(variable, value)], &[]).unwrap_err().to_string();
        assert!(error.starts_with(variable) && error.contains(value), "{error}");
    }
}

#[test]
fn mirror_fresh_may_be_zero_but_not_negative() {
    let fresh = |text: &str| with_file(&format!("[mirror]\nfresh = {text}"), &[], &[]);
    for (text, time) in
        [("0", Duration::ZERO), ("\"0s\"", Duration::ZERO), ("\"2m\"", Duration::from_secs(120))]
    {
        assert_eq!(fresh(text).unwrap().mirror.upstreams.fresh, time);
    }
    for bad in ["-1", "\"-1h\"", "\"soon\""] {
        let text = fresh(bad).unwrap_err().to_string();
        assert!(text.contains("mirror.fresh is "), "{text}");
    }
}

#[test]
fn the_packaged_units_leave_settings_to_the_file() {
    let server = include_str!("../../../../packaging/puna.service");
    let mirror = include_str!("../../../../packaging/puna-mirror.service");
    for (unit, command) in [(server, "puna serve"), (mirror, "puna mirror")] {
        let sets = |line: &&str| {
            ["Environment", "PassEnvironment"].iter().any(|key| line.starts_with(key))
        };
        assert_eq!(
            unit.lines().find(sets),
            None,
            "it would win over what an administrator writes into the file"
        );
        let starts: Vec<_> =
            unit.lines().filter_map(|line| line.strip_prefix("ExecStart=")).collect();
        assert_eq!(starts, [format!("/usr/local/bin/{command}")], "so would a flag");
    }
}

#[test]
fn the_packaged_unit_of_the_server_lets_runners_enter_their_sandbox() {
    let unit = include_str!("../../../../packaging/puna.service");
    let lists: Vec<_> =
        unit.lines().filter_map(|line| line.strip_prefix("SystemCallFilter=")).collect();
    let (denied, allowed): (Vec<_>, Vec<_>) =
        lists.into_iter().partition(|list| list.starts_with('~'));
    let has = |lists: &[&str], call: &str| {
        lists.iter().any(|list| list.trim_start_matches('~').split(' ').any(|word| word == call))
    };
    let calls =
        ["seccomp", "landlock_create_ruleset", "landlock_add_rule", "landlock_restrict_self"];
    for call in calls {
        assert!(has(&allowed, call) && !has(&denied, call), "{call}");
    }
    // A runner reads the processors and the limits of its control group.
    for hides in ["ProcSubset=pid", "PrivateUsers=yes"] {
        assert!(!unit.lines().any(|line| line == hides), "{hides}");
    }
}

#[test]
fn the_packaged_settings_of_the_mirror_are_valid() {
    let packaged = include_str!("../../../../packaging/puna-mirror.toml");
    let c = with_file(packaged, &[], &[]).unwrap();
    assert_eq!(c.warnings, []);
    let shown = |c: &Config, key: &str| {
        c.settings.iter().find(|setting| setting.key == key).unwrap().value.clone()
    };
    assert_eq!(shown(&c, "models"), Some("\"/var/lib/puna/models\"".into()));
    assert_eq!(shown(&c, "mirror.host"), Some("\"0.0.0.0:5000\"".into()));
    let own = packaged.replace("0.0.0.0", "127.0.0.1");
    assert_eq!(
        shown(&with_file(&own, &[], &[]).unwrap(), "mirror.host"),
        Some("\"127.0.0.1:5000\"".into())
    );
}

#[test]
fn an_empty_path_or_address_of_the_command_line_counts_as_absent() {
    let keys = |text: &str, variables: &[(&str, &str)]| {
        let c = with_file(text, variables, &[("keys", "")]).unwrap();
        c.keys.file_name().unwrap().to_owned()
    };
    assert_eq!(keys("", &[]), "keys.toml", "the default file protects the server");
    assert_eq!(keys("", &[("PUNA_KEYS", "/a/mine")]), "mine");
    assert_eq!(keys("keys = \"/a/theirs\"", &[]), "theirs");
    let host = |flag| {
        let c = with_file("", &[("OLLAMA_HOST", "127.0.0.2:7")], &[("host", flag)]).unwrap();
        c.address.authority()
    };
    assert_eq!((host(""), host("h:8")), ("127.0.0.2:7".to_owned(), "h:8".to_owned()));
}

#[test]
fn an_address_names_a_host_or_a_port() {
    for wrong in ["/none", "[", "http:///x"] {
        let error = with_file("", &[], &[("host", wrong)]).unwrap_err().to_string();
        assert!(error.contains("must begin with a host name"), "{wrong}: {error}");
    }
    for fine in [":8080", "[::1]:7", "::1", "https://h/x"] {
        assert!(with_file("", &[], &[("host", fine)]).is_ok(), "{fine}");
    }
}

#[test]
fn on_and_true_enable_speculation() {
    for text in ["on", "TRUE", "auto"] {
        let c = with_file("", &[], &[("speculate", text)]).unwrap();
        assert_eq!(c.speculate, SpeculateSetting::default(), "{text}");
        assert!(config(&[("PUNA_SPECULATE", text)]).warnings.is_empty(), "{text}");
    }
}

#[test]
fn numbers_and_levels_that_are_too_large_are_refused_with_the_largest() {
    let error = |key, text| with_file("", &[], &[(key, text)]).unwrap_err().to_string();
    let text = error("max_queue", "99999999999");
    assert!(text.ends_with("it must be a whole number from 0 to 4294967295"), "{text}");
    assert!(error("debug", "x").ends_with("it must be 0, 1 or 2, or on or off"));
    let warnings = config(&[("OLLAMA_DEBUG", "3")]).warnings;
    assert!(warnings[0].to_string().ends_with("on or off; using 2"), "{warnings:?}");
}

#[test]
fn control_characters_of_values_are_shown_with_escapes_of_json() {
    for key in ["max_queue", "origins", "prefix_sharing", "speculate", "debug"] {
        let error = with_file("", &[], &[(key, "a\u{1b} \u{7f}")]).unwrap_err().to_string();
        assert!(error.contains("\"a\\u001b ") && !error.contains('\u{1b}'), "{error}");
    }
}

#[test]
fn a_file_that_is_not_utf8_is_refused_with_its_line() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("puna.toml");
    std::fs::write(&path, b"debug = 1\nkeys = \"\xff\"").unwrap();
    let error = File::read(&path).unwrap_err().to_string();
    assert!(error.ends_with(": line 2 is not UTF-8"), "{error}");
    std::fs::write(&path, "open = true\n[[key]]\nname = 5").unwrap();
    let error = crate::auth::KeyFile::read(&path).unwrap_err().to_string();
    assert!(error.contains(": line 3: "), "{error}");
}

#[test]
fn hosts_of_registries_are_host_names() {
    let error = with_file("[registry.hosts.\"x/y z\"]\nhttp = true", &[], &[]).unwrap_err();
    assert!(error.to_string().contains("line 1: [registry.hosts.\"x/y z\"]: use a host name"));
    assert!(with_file("[registry.hosts.\"[::1]:5000\"]\nhttp = true", &[], &[]).is_ok());
}
