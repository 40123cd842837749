//! Table of all settings. The keys of the configuration file, the variables, the order of
//! `puna config`, the help of commands and `docs/reference/settings.md` come from it.

/// Type of a value in the configuration file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ValueKind {
    /// A text, not a number or boolean.
    Text,
    /// A text or a list of texts.
    List,
    /// A text, a number or a boolean.
    Any,
}

/// Table of the manual that lists a setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SettingGroup {
    /// Address, model store, loaded models and their requests.
    Server,
    /// How models are computed.
    Engine,
    /// API keys, TLS and web origins.
    Access,
    /// Pulls and pushes.
    Registries,
    /// Models on other servers.
    Remote,
    /// The registry that Puna serves.
    Mirror,
    /// Commands that use a server.
    Commands,
}

/// Default of a setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SettingDefault {
    /// No value.
    Unset,
    /// A value as it may be set.
    Value(&'static str),
    /// A rule, in Markdown.
    Described(&'static str),
}

/// Definition of a setting.
#[derive(Debug, Clone, Copy)]
pub struct SettingDefinition {
    /// Key in the configuration file and after `--set`.
    pub key: &'static str,
    /// Variables that the manual names, the usual one first. Puna reads the key in upper case with
    /// both prefixes, `PUNA_` and `OLLAMA_`.
    pub variables: &'static [&'static str],
    /// Type of the value in the configuration file.
    pub kind: ValueKind,
    /// Table of the manual.
    pub group: SettingGroup,
    /// Value without any source. A test compares it with the configuration.
    pub default: SettingDefault,
    /// Meaning in the manual, in Markdown.
    pub meaning: &'static str,
    /// Meaning in the help of commands, without the default; `None` if no command names the
    /// variable. With name and default it fits 80 columns.
    pub help: Option<&'static str>,
}

/// All settings, in the order of `puna config`.
pub const SETTINGS: &[SettingDefinition] = &[
    SettingDefinition {
        key: "host",
        variables: &["OLLAMA_HOST"],
        kind: ValueKind::Text,
        group: SettingGroup::Server,
        default: SettingDefault::Value("127.0.0.1:11434"),
        meaning: "address that the server listens on and that commands connect to; see [Commands without a server](../guide/serve.md#commands-without-a-server)",
        help: Some("Address of the server"),
    },
    SettingDefinition {
        key: "models",
        variables: &["OLLAMA_MODELS"],
        kind: ValueKind::Text,
        group: SettingGroup::Server,
        default: SettingDefault::Described("`~/.ollama/models`"),
        meaning: "folder of the model store",
        help: Some("The path to the models directory"),
    },
    SettingDefinition {
        key: "search_paths",
        variables: &["PUNA_SEARCH_PATHS"],
        kind: ValueKind::List,
        group: SettingGroup::Server,
        default: SettingDefault::Unset,
        meaning: "additional [read-only model folders](../guide/store.md#read-only-model-folders)",
        help: None,
    },
    SettingDefinition {
        key: "runner",
        variables: &["PUNA_RUNNER"],
        kind: ValueKind::Text,
        group: SettingGroup::Server,
        default: SettingDefault::Unset,
        meaning: "runner whose manifest is used where a name has [several manifests](../guide/store.md#manifests-for-several-runners): `llamacpp`, `ggml` …; unset: the one that runs best",
        help: None,
    },
    SettingDefinition {
        key: "origins",
        variables: &["OLLAMA_ORIGINS"],
        kind: ValueKind::List,
        group: SettingGroup::Access,
        default: SettingDefault::Unset,
        meaning: "additional web origins that may call the API",
        help: Some("A comma separated list of allowed origins"),
    },
    SettingDefinition {
        key: "keys",
        variables: &["PUNA_KEYS"],
        kind: ValueKind::Text,
        group: SettingGroup::Access,
        default: SettingDefault::Described("`~/.config/puna/keys.toml`"),
        meaning: "file of [API keys](../guide/serve.md#api-keys)",
        help: None,
    },
    SettingDefinition {
        key: "tls.certificate",
        variables: &["PUNA_TLS_CERTIFICATE"],
        kind: ValueKind::Text,
        group: SettingGroup::Access,
        default: SettingDefault::Unset,
        meaning: "file of the certificate for [TLS](../guide/serve.md#tls)",
        help: Some("Certificate file, for https"),
    },
    SettingDefinition {
        key: "tls.key",
        variables: &["PUNA_TLS_KEY"],
        kind: ValueKind::Text,
        group: SettingGroup::Access,
        default: SettingDefault::Unset,
        meaning: "file of the private key for [TLS](../guide/serve.md#tls)",
        help: Some("Private key file, for https"),
    },
    SettingDefinition {
        key: "mirror.serve",
        variables: &["PUNA_MIRROR_SERVE"],
        kind: ValueKind::Any,
        group: SettingGroup::Mirror,
        default: SettingDefault::Value("off"),
        meaning: "also serve a [registry](../guide/mirror.md)",
        help: None,
    },
    SettingDefinition {
        key: "mirror.host",
        variables: &["PUNA_MIRROR_HOST"],
        kind: ValueKind::Text,
        group: SettingGroup::Mirror,
        default: SettingDefault::Value("127.0.0.1:5000"),
        meaning: "address of `puna mirror`, which serves only the registry",
        help: Some("Address to listen on"),
    },
    SettingDefinition {
        key: "mirror.anonymous",
        variables: &["PUNA_MIRROR_ANONYMOUS"],
        kind: ValueKind::Any,
        group: SettingGroup::Mirror,
        default: SettingDefault::Value("off"),
        meaning: "allow pulls without a key even if there are [keys](../guide/mirror.md#access-control)",
        help: None,
    },
    SettingDefinition {
        key: "mirror.push",
        variables: &["PUNA_MIRROR_PUSH"],
        kind: ValueKind::Any,
        group: SettingGroup::Mirror,
        default: SettingDefault::Value("off"),
        meaning: "while there are no keys, allow pushes from every machine, not only from this one",
        help: Some("Allow pushes from other machines too"),
    },
    SettingDefinition {
        key: "mirror.delete",
        variables: &["PUNA_MIRROR_DELETE"],
        kind: ValueKind::Any,
        group: SettingGroup::Mirror,
        default: SettingDefault::Value("off"),
        meaning: "allow deletion: with keys for scope `admin`, else for all clients that may push",
        help: Some("Allow removal of models by keys of scope admin"),
    },
    SettingDefinition {
        key: "mirror.announce",
        variables: &["PUNA_MIRROR_ANNOUNCE"],
        kind: ValueKind::Any,
        group: SettingGroup::Mirror,
        default: SettingDefault::Value("off"),
        meaning: "`puna mirror` [announces](../guide/mirror.md#mdns-discovery) itself on the network",
        help: None,
    },
    SettingDefinition {
        key: "mirror.names",
        variables: &["PUNA_MIRROR_NAMES"],
        kind: ValueKind::List,
        group: SettingGroup::Mirror,
        default: SettingDefault::Described("the host of the request"),
        meaning: "[hosts](../guide/mirror.md#host-names), with ports, under which clients reach the registry; signatures for other hosts are not accepted",
        help: None,
    },
    SettingDefinition {
        key: "mirror.storage",
        variables: &["PUNA_MIRROR_STORAGE"],
        kind: ValueKind::Text,
        group: SettingGroup::Mirror,
        default: SettingDefault::Unset,
        meaning: "[bucket](../guide/mirror.md#s3-storage) that stores the registry instead of the folder: `s3://BUCKET/PREFIX`",
        help: None,
    },
    SettingDefinition {
        key: "mirror.storage_endpoint",
        variables: &["PUNA_MIRROR_STORAGE_ENDPOINT"],
        kind: ValueKind::Text,
        group: SettingGroup::Mirror,
        default: SettingDefault::Unset,
        meaning: "address of the bucket's service, if it is not Amazon's",
        help: None,
    },
    SettingDefinition {
        key: "mirror.storage_region",
        variables: &["PUNA_MIRROR_STORAGE_REGION"],
        kind: ValueKind::Text,
        group: SettingGroup::Mirror,
        default: SettingDefault::Unset,
        meaning: "region of the bucket",
        help: None,
    },
    SettingDefinition {
        key: "mirror.storage_key",
        variables: &["PUNA_MIRROR_STORAGE_KEY"],
        kind: ValueKind::Text,
        group: SettingGroup::Mirror,
        default: SettingDefault::Unset,
        meaning: "access key, instead of `AWS_ACCESS_KEY_ID`; hidden in `puna config`",
        help: None,
    },
    SettingDefinition {
        key: "mirror.storage_secret",
        variables: &["PUNA_MIRROR_STORAGE_SECRET"],
        kind: ValueKind::Text,
        group: SettingGroup::Mirror,
        default: SettingDefault::Unset,
        meaning: "secret key, instead of `AWS_SECRET_ACCESS_KEY`; hidden in `puna config`",
        help: None,
    },
    SettingDefinition {
        key: "mirror.quotas",
        variables: &["PUNA_MIRROR_QUOTAS"],
        kind: ValueKind::List,
        group: SettingGroup::Mirror,
        default: SettingDefault::Unset,
        meaning: "[quotas](../guide/mirror.md#quotas) of namespaces in bytes: `team-*=200GB,*=50GB`",
        help: None,
    },
    SettingDefinition {
        key: "mirror.retention",
        variables: &["PUNA_MIRROR_RETENTION"],
        kind: ValueKind::List,
        group: SettingGroup::Mirror,
        default: SettingDefault::Unset,
        meaning: "[retention](../guide/mirror.md#retention) rules of repositories: `library=pulled:30d,team-*=last:5 keep:latest`",
        help: Some("Retention rules, such as library=pulled:30d"),
    },
    SettingDefinition {
        key: "mirror.upstreams",
        variables: &["PUNA_MIRROR_UPSTREAMS"],
        kind: ValueKind::List,
        group: SettingGroup::Mirror,
        default: SettingDefault::Unset,
        meaning: "hosts from which the registry [fetches](../guide/mirror.md#pull-through-cache) models that clients request",
        help: Some("Registries to fetch missing models from"),
    },
    SettingDefinition {
        key: "mirror.private",
        variables: &["PUNA_MIRROR_PRIVATE"],
        kind: ValueKind::List,
        group: SettingGroup::Mirror,
        default: SettingDefault::Unset,
        meaning: "namespaces that the registry never fetches from an upstream: `team`, `team-*`",
        help: None,
    },
    SettingDefinition {
        key: "mirror.fresh",
        variables: &["PUNA_MIRROR_FRESH"],
        kind: ValueKind::Any,
        group: SettingGroup::Mirror,
        default: SettingDefault::Value("1h"),
        meaning: "how long an upstream's tag is served before the registry checks whether it has moved",
        help: None,
    },
    SettingDefinition {
        key: "mirror.fetch",
        variables: &["PUNA_MIRROR_FETCH"],
        kind: ValueKind::List,
        group: SettingGroup::Mirror,
        default: SettingDefault::Unset,
        meaning: "the only repositories that the registry [fetches](../guide/mirror.md#fetch-limits): `library`, `hf.co/user/*`",
        help: Some("The only models to fetch, such as library/*"),
    },
    SettingDefinition {
        key: "mirror.fetch_limit",
        variables: &["PUNA_MIRROR_FETCH_LIMIT"],
        kind: ValueKind::Any,
        group: SettingGroup::Mirror,
        default: SettingDefault::Unset,
        meaning: "maximum size in bytes of a model fetched for a client without a key: `40GB`",
        help: None,
    },
    SettingDefinition {
        key: "mirror.fetch_parallel",
        variables: &["PUNA_MIRROR_FETCH_PARALLEL"],
        kind: ValueKind::Any,
        group: SettingGroup::Mirror,
        default: SettingDefault::Unset,
        meaning: "maximum number of models that the registry fetches at once",
        help: None,
    },
    SettingDefinition {
        key: "api_key",
        variables: &["PUNA_API_KEY", "OLLAMA_API_KEY"],
        kind: ValueKind::Text,
        group: SettingGroup::Commands,
        default: SettingDefault::Unset,
        meaning: "API key that commands send to a server; hidden in `puna config`",
        help: Some("API key for the server"),
    },
    SettingDefinition {
        key: "keep_alive",
        variables: &["OLLAMA_KEEP_ALIVE"],
        kind: ValueKind::Any,
        group: SettingGroup::Server,
        default: SettingDefault::Value("5m"),
        meaning: "how long a model stays loaded after its last request; negative: forever",
        help: Some("How long models stay in memory"),
    },
    SettingDefinition {
        key: "load_timeout",
        variables: &["OLLAMA_LOAD_TIMEOUT"],
        kind: ValueKind::Any,
        group: SettingGroup::Server,
        default: SettingDefault::Value("5m"),
        meaning: "how long a load may stall",
        help: Some("How long a model load may stall"),
    },
    SettingDefinition {
        key: "write_timeout",
        variables: &["PUNA_WRITE_TIMEOUT"],
        kind: ValueKind::Any,
        group: SettingGroup::Server,
        default: SettingDefault::Value("1m"),
        meaning: "how long a client may read nothing of its answer before the server ends it",
        help: None,
    },
    SettingDefinition {
        key: "step_timeout",
        variables: &["PUNA_STEP_TIMEOUT"],
        kind: ValueKind::Any,
        group: SettingGroup::Server,
        default: SettingDefault::Value("15m"),
        meaning: "how long one step of a model may take before the server ends the runner",
        help: None,
    },
    SettingDefinition {
        key: "context_length",
        variables: &["OLLAMA_CONTEXT_LENGTH"],
        kind: ValueKind::Any,
        group: SettingGroup::Server,
        default: SettingDefault::Described("the model's context"),
        meaning: "`num_ctx` of requests that set none; see [Context length](../guide/serve.md#context-length)",
        help: Some("Context length unless otherwise specified"),
    },
    SettingDefinition {
        key: "num_parallel",
        variables: &["OLLAMA_NUM_PARALLEL"],
        kind: ValueKind::Any,
        group: SettingGroup::Server,
        default: SettingDefault::Unset,
        meaning: "maximum number of sequences of one model that run at once; further ones wait. Unset: as many as memory allows",
        help: Some("Maximum number of parallel requests"),
    },
    SettingDefinition {
        key: "max_loaded_models",
        variables: &["OLLAMA_MAX_LOADED_MODELS"],
        kind: ValueKind::Any,
        group: SettingGroup::Server,
        default: SettingDefault::Described("3"),
        meaning: "maximum number of models in memory",
        help: Some("Maximum number of loaded models"),
    },
    SettingDefinition {
        key: "max_queue",
        variables: &["OLLAMA_MAX_QUEUE"],
        kind: ValueKind::Any,
        group: SettingGroup::Server,
        default: SettingDefault::Value("512"),
        meaning: "maximum number of requests that wait for a model to be loaded; further ones get 503 with `Retry-After`. The queue of a loaded model has no limit",
        help: Some("Maximum number of queued requests"),
    },
    SettingDefinition {
        key: "kv_cache_type",
        variables: &["OLLAMA_KV_CACHE_TYPE"],
        kind: ValueKind::Text,
        group: SettingGroup::Engine,
        default: SettingDefault::Value("f16"),
        meaning: "type of the KV cache: `f16`, `bf16`, `q8_0`, `q4_0`, `f32`",
        help: Some("Type of the KV cache"),
    },
    SettingDefinition {
        key: "go_template",
        variables: &["OLLAMA_GO_TEMPLATE"],
        kind: ValueKind::Any,
        group: SettingGroup::Server,
        default: SettingDefault::Unset,
        meaning: "1: prefer the Go template of the Modelfile, 0: the Jinja template of the model file. Unset: chosen for each model",
        help: Some("Prefer Go templates (true) or Jinja (false)"),
    },
    SettingDefinition {
        key: "noprune",
        variables: &["OLLAMA_NOPRUNE"],
        kind: ValueKind::Any,
        group: SettingGroup::Server,
        default: SettingDefault::Value("off"),
        meaning: "disable [automatic clean-up](../guide/store.md#automatic-clean-up); replaced models keep their blobs. `rm` and `prune` still remove",
        help: Some("Disable automatic clean-up"),
    },
    SettingDefinition {
        key: "debug",
        variables: &["OLLAMA_DEBUG"],
        kind: ValueKind::Any,
        group: SettingGroup::Server,
        default: SettingDefault::Value("off"),
        meaning: "1: debug messages, 2: traces",
        help: Some("Log more: debug information (1), traces too (2)"),
    },
    SettingDefinition {
        key: "max_transfer_streams",
        variables: &["OLLAMA_MAX_TRANSFER_STREAMS"],
        kind: ValueKind::Any,
        group: SettingGroup::Registries,
        default: SettingDefault::Value("8"),
        meaning: "maximum number of connections of one download; see [registry settings](../guide/registry.md#settings) for proxies and certificates",
        help: Some("Connections of one download"),
    },
    SettingDefinition {
        key: "registry.default",
        variables: &["PUNA_REGISTRY_DEFAULT"],
        kind: ValueKind::Text,
        group: SettingGroup::Registries,
        default: SettingDefault::Unset,
        meaning: "registry to use [instead of Ollama's](../guide/registry.md#default-registry)",
        help: Some("Registry for names without a host"),
    },
    SettingDefinition {
        key: "registry.mirrors",
        variables: &["PUNA_REGISTRY_MIRRORS"],
        kind: ValueKind::List,
        group: SettingGroup::Registries,
        default: SettingDefault::Unset,
        meaning: "[mirrors](../guide/registry.md#mirrors) to try before Ollama's registry",
        help: Some("Mirrors to try first"),
    },
    SettingDefinition {
        key: "registry.limit_rate",
        variables: &["PUNA_REGISTRY_LIMIT_RATE"],
        kind: ValueKind::Any,
        group: SettingGroup::Registries,
        default: SettingDefault::Unset,
        meaning: "maximum bytes per second (`500KB`, `20MB`) of all pulls and pushes together",
        help: None,
    },
    SettingDefinition {
        key: "image_urls",
        variables: &["PUNA_IMAGE_URLS"],
        kind: ValueKind::Any,
        group: SettingGroup::Server,
        default: SettingDefault::Value("off"),
        meaning: "fetch images from [image URLs](../guide/serve.md#image-urls)",
        help: Some("Fetch images from URLs in requests"),
    },
    SettingDefinition {
        key: "image_hosts",
        variables: &["PUNA_IMAGE_HOSTS"],
        kind: ValueKind::List,
        group: SettingGroup::Server,
        default: SettingDefault::Unset,
        meaning: "non-public hosts (`name` or `name:port`) that images may be fetched from",
        help: Some("Non-public hosts to fetch images from"),
    },
    SettingDefinition {
        key: "remotes",
        variables: &["PUNA_REMOTES"],
        kind: ValueKind::List,
        group: SettingGroup::Remote,
        default: SettingDefault::Unset,
        meaning: "servers that [remote models](../guide/remote.md) may use: hosts, or addresses without a path",
        help: None,
    },
    SettingDefinition {
        key: "remote_keys",
        variables: &["PUNA_REMOTE_KEYS"],
        kind: ValueKind::List,
        group: SettingGroup::Remote,
        default: SettingDefault::Unset,
        meaning: "API keys for the servers of remote models: `host:port=KEY`; hidden in `puna config`",
        help: None,
    },
    SettingDefinition {
        key: "remote_timeout",
        variables: &["PUNA_REMOTE_TIMEOUT"],
        kind: ValueKind::Any,
        group: SettingGroup::Remote,
        default: SettingDefault::Value("10m"),
        meaning: "how long the server of a remote model may send nothing",
        help: None,
    },
    SettingDefinition {
        key: "kernels",
        variables: &["PUNA_KERNELS"],
        kind: ValueKind::Text,
        group: SettingGroup::Engine,
        default: SettingDefault::Described("the best"),
        meaning: "kernel level; see `puna debug kernels`",
        help: Some("Kernel level (see `puna debug kernels`)"),
    },
    SettingDefinition {
        key: "threads",
        variables: &["PUNA_THREADS"],
        kind: ValueKind::Any,
        group: SettingGroup::Engine,
        default: SettingDefault::Described("one per core"),
        meaning: "[threads](../guide/serve.md#threads) of a model; never more than processors",
        help: Some("Threads per model instead of one per core"),
    },
    SettingDefinition {
        key: "deterministic",
        variables: &["PUNA_DETERMINISTIC"],
        kind: ValueKind::Any,
        group: SettingGroup::Engine,
        default: SettingDefault::Value("off"),
        meaning: "[deterministic mode](../guide/serve.md#deterministic-mode), as `--deterministic`",
        help: Some("As --deterministic"),
    },
    SettingDefinition {
        key: "speculate",
        variables: &["PUNA_SPECULATE"],
        kind: ValueKind::Any,
        group: SettingGroup::Engine,
        default: SettingDefault::Value("auto"),
        meaning: "[speculative decoding](../guide/speculation.md): `auto`, `off`, `ngram`, `always`, or a draft model; as `puna serve --speculate`",
        help: Some("As --speculate"),
    },
    SettingDefinition {
        key: "nohistory",
        variables: &["OLLAMA_NOHISTORY"],
        kind: ValueKind::Any,
        group: SettingGroup::Commands,
        default: SettingDefault::Value("off"),
        meaning: "do not store the input of `puna run` in its history",
        help: Some("Do not preserve readline history"),
    },
    SettingDefinition {
        key: "editor",
        variables: &["OLLAMA_EDITOR"],
        kind: ValueKind::Text,
        group: SettingGroup::Commands,
        default: SettingDefault::Described("`VISUAL`, else `EDITOR`, else `vi`"),
        meaning: "editor for prompts",
        help: Some("Editor for interactive prompts (Ctrl+G)"),
    },
];

impl SettingDefinition {
    /// Finds a setting by a variable that the manual names.
    pub fn of_variable(name: &str) -> Option<&'static Self> {
        SETTINGS.iter().find(|setting| setting.variables.contains(&name))
    }

    /// Returns the meaning in the help of commands, with the default unless it is "off".
    pub fn help_text(&self) -> Option<String> {
        let help = self.help?;
        Some(match self.default {
            SettingDefault::Value(value) if value != "off" => format!("{help} (default {value})"),
            _ => help.to_owned(),
        })
    }
}
