//! `puna create`: creates a model from a Modelfile and the files that it names.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::pin::pin;

use anyhow::{Context, Result, bail};
use puna_api::ollama::{CreateRequest, License, Message, Progress, ShowRequest};
use puna_api::{Client, ClientError};
use puna_store::{
    LinkMethod, LinkOutcome, LocalFile, LocalPlan, ModelRef, Modelfile, StoreError,
    check_quantize_type, plan_local,
};
use serde_json::Value;
use tokio::io::AsyncReadExt;
use tokio::sync::watch;

use crate::cli::CreateArgs;
use crate::out;
use crate::progress::ProgressDisplay;
use crate::service::Service;
use crate::usage;

/// Default Modelfile: the model in the current folder.
const DEFAULT_MODELFILE: &str = "FROM .\n";
/// Size limit of a Modelfile, in bytes.
const MAX_MODELFILE_BYTES: u64 = 64 << 20;

pub fn run(args: &CreateArgs) -> Result<()> {
    check(args)?;
    let Recipe { modelfile, base, shown: file } = read(&args.file)?;
    let mut display = ProgressDisplay::new();
    let mut show = |progress: puna_store::Progress| display.show(&to_api_progress(progress));
    let plan = plan_local(&modelfile, &base, crate::env::home().as_deref(), &mut show);
    let plan = match file {
        Some(file) => plan.context(file)?,
        None => plan?,
    };
    let imatrix =
        args.imatrix.as_deref().map(|path| LocalFile::read(path, &mut show)).transpose()?;
    for name in &plan.deprecated {
        out::note(format_args!("warning: parameter {name} is deprecated"));
    }
    let service = Service::connect_or_run_in_process()?;
    service.runtime().block_on(create(args, &service, plan, imatrix, &mut display))?;
    display.done();
    Ok(())
}

/// Refuses invalid arguments before any file is read.
fn check(args: &CreateArgs) -> Result<()> {
    if !ModelRef::parse(&args.model).is_ok_and(|model| model.runner.is_none()) {
        bail!("invalid model name: {}", args.model);
    }
    for (flag, kind) in [("--quantize", &args.quantize), ("--draft-quantize", &args.draft_quantize)]
    {
        if kind.as_ref().is_some_and(|kind| kind.trim().is_empty()) {
            return Err(usage::error(format!(
                "{flag} needs a type, such as Q4_K_M; leave it out to keep the weights unchanged"
            )));
        }
        let has_imatrix = flag == "--quantize" && args.imatrix.is_some();
        kind.as_ref()
            .map_or(Ok(()), |kind| check_quantize_type(kind, has_imatrix))
            .map_err(|error| usage::error(error.to_string()))?;
    }
    if args.imatrix.is_some() && args.quantize.is_none() {
        return Err(usage::error("--imatrix needs --quantize with a type, such as Q4_K_M"));
    }
    Ok(())
}

/// Transfers the files to the server and creates the model there.
async fn create(
    args: &CreateArgs,
    service: &Service,
    plan: LocalPlan,
    imatrix: Option<LocalFile>,
    display: &mut ProgressDisplay,
) -> Result<()> {
    for file in &plan.files {
        send_file(service, file, args.reference, display).await?;
    }
    if let Some(file) = &imatrix {
        // The importance matrix is used only now and never referenced from the model.
        send_file(service, file, false, display).await?;
    }
    let given: Vec<LocalFile> = plan.files.iter().chain(&imatrix).cloned().collect();
    let mut request = request(args, plan);
    request.imatrix = imatrix.map(|file| file.digest.to_string()).unwrap_or_default();
    let created = async { display.follow(service.client().create(&request).await?).await };
    match created.await {
        Ok(()) => Ok(()),
        Err(error) if is_missing(service.client(), &request.from).await => {
            let from = &request.from;
            // A URL is neither a file name nor the name of a stored model.
            if from.contains("://") {
                bail!("cannot pull FROM {from}: {error}");
            }
            bail!(
                "FROM {from}: no such file, folder or stored model (`puna list`), and it cannot be pulled: {error}"
            )
        }
        Err(error) => match replace_digests(&error.to_string(), &given) {
            Some(text) => bail!(text),
            None => Err(error.into()),
        },
    }
}

/// Replaces digests in a server's message by the local file names, because the server knows some
/// files only by digest. `None` if the message names none of the digests.
fn replace_digests(text: &str, files: &[LocalFile]) -> Option<String> {
    let named = files.iter().fold(text.to_owned(), |text, file| {
        let name = file.path.display().to_string();
        text.replace(&file.digest.file_name(), &name).replace(&file.digest.to_string(), &name)
    });
    (named != text).then_some(named)
}

/// Converts a progress event of the store to one of the API.
fn to_api_progress(progress: puna_store::Progress) -> Progress {
    Progress {
        status: progress.status,
        digest: progress.digest.unwrap_or_default(),
        total: progress.total.unwrap_or(0),
        completed: progress.completed.unwrap_or(0),
    }
}

/// Reads at most one byte more than the size limit of a Modelfile; of a GGUF file only the first
/// bytes.
fn read_start(path: &Path) -> std::io::Result<Vec<u8>> {
    let mut file = std::fs::File::open(path)?;
    let mut bytes = Vec::new();
    file.by_ref().take(4).read_to_end(&mut bytes)?;
    if bytes != b"GGUF" {
        file.take(MAX_MODELFILE_BYTES + 1 - bytes.len() as u64).read_to_end(&mut bytes)?;
    }
    Ok(bytes)
}

/// A Modelfile with its origin.
struct Recipe {
    modelfile: Modelfile,
    /// Folder to which its paths are relative.
    base: PathBuf,
    /// Name for error messages; `None` if there is no Modelfile.
    shown: Option<String>,
}

fn read(path: &Path) -> Result<Recipe> {
    let here = std::env::current_dir().context("cannot determine the current directory")?;
    if path == Path::new("-") {
        let mut bytes = Vec::new();
        std::io::Read::read_to_end(&mut std::io::stdin(), &mut bytes)
            .context("cannot read standard input")?;
        return Ok(Recipe { modelfile: Modelfile::parse_bytes(&bytes)?, base: here, shown: None });
    }
    match read_start(path) {
        Ok(bytes) if bytes.starts_with(b"GGUF") => {
            let shown = path.display();
            bail!("{shown} is a GGUF file, not a Modelfile: write `FROM {shown}` in a Modelfile")
        }
        Ok(bytes) if bytes.len() as u64 > MAX_MODELFILE_BYTES => {
            bail!(
                "{} is not a Modelfile: it has more than {MAX_MODELFILE_BYTES} bytes",
                path.display()
            )
        }
        Ok(bytes) => {
            let base = here.join(path).parent().map_or(here.clone(), Path::to_owned);
            let shown = path.display().to_string();
            let modelfile = Modelfile::parse_bytes(&bytes).with_context(|| shown.clone())?;
            Ok(Recipe { modelfile, base, shown: Some(shown) })
        }
        Err(e) if e.kind() == std::io::ErrorKind::NotFound && path == Path::new("Modelfile") => {
            // Without a Modelfile, errors have no line number.
            let modelfile = Modelfile { lines: Vec::new(), ..Modelfile::parse(DEFAULT_MODELFILE)? };
            Ok(Recipe { modelfile, base: here, shown: None })
        }
        Err(e) => Err(e).with_context(|| format!("cannot read {}", path.display())),
    }
}

/// Transfers a file to the server's store. It is shared if both use the same model folder, and
/// uploaded otherwise.
async fn send_file(
    service: &Service,
    file: &LocalFile,
    refer: bool,
    display: &mut ProgressDisplay,
) -> Result<()> {
    let (client, digest) = (service.client(), file.digest.to_string());
    display.status(&format!("copying file {digest}"));
    // Sharing is tried first on the same machine, because it also checks a blob that exists
    // already.
    if share_file(service, file, refer).await? || client.has_blob(&digest).await? {
        return Ok(());
    }
    if refer {
        bail!(
            "cannot refer to {}: --reference needs a server on this machine and write access to its models directory",
            file.path.display()
        );
    }
    upload(client, file, display).await?;
    if service.is_local() {
        crate::env::store()?.restrict_blob_permissions(&file.digest, &file.path);
    }
    Ok(())
}

/// Adds a file to this user's model folder without a copy. Returns whether the server then has the
/// blob.
async fn share_file(service: &Service, file: &LocalFile, refer: bool) -> Result<bool> {
    if !service.is_local() {
        return Ok(false);
    }
    let store = crate::env::store()?;
    // No folder is created for a server with its models elsewhere.
    if !service.is_in_process() && !store.root().join("blobs").is_dir() {
        return Ok(false);
    }
    let how = if refer { LinkMethod::Symlink } else { LinkMethod::Share };
    match store.link_local_file(&file.path, &file.digest, file.size, how) {
        Ok(LinkOutcome::Added) => {}
        Ok(LinkOutcome::AlreadyStored) => {
            return Ok(service.client().has_blob(&file.digest.to_string()).await?);
        }
        Err(error @ StoreError::FileChanged { .. }) => return Err(error.into()),
        // The file belongs to another user or is on another file system.
        Ok(_) | Err(_) => return Ok(false),
    }
    let is_there = service.client().has_blob(&file.digest.to_string()).await?;
    if !is_there {
        store.undo_link_local_file(&file.digest)?;
    }
    Ok(is_there)
}

async fn upload(client: &Client, file: &LocalFile, display: &mut ProgressDisplay) -> Result<()> {
    let digest = file.digest.to_string();
    let opened = tokio::fs::File::open(&file.path).await;
    let opened = opened.with_context(|| format!("cannot read {}", file.path.display()))?;
    let (report, mut sent) = watch::channel(0);
    // Pieces of 256 KiB keep both ends busy.
    let pieces =
        futures_util::stream::try_unfold((opened, report), move |(mut file, report)| async move {
            let mut piece = vec![0; 1 << 18];
            let n = file.read(&mut piece).await?;
            piece.truncate(n);
            report.send_modify(|sent| *sent += n as u64);
            Ok::<_, std::io::Error>((n > 0).then(|| (bytes::Bytes::from(piece), (file, report))))
        });
    let mut push = pin!(client.push_blob(&digest, file.size, pieces));
    loop {
        tokio::select! {
            done = &mut push => return Ok(done?),
            Ok(()) = sent.changed() => display.show(&Progress {
                status: format!("copying file {digest}"),
                digest: digest.clone(),
                total: file.size,
                completed: *sent.borrow_and_update(),
            }),
        }
    }
}

/// Whether the server lacks the base model of a creation.
async fn is_missing(client: &Client, from: &str) -> bool {
    let request = ShowRequest { model: from.to_owned(), ..ShowRequest::default() };
    !from.is_empty()
        && matches!(client.show(&request).await, Err(ClientError::Status { status: 404, .. }))
}

fn request(args: &CreateArgs, plan: LocalPlan) -> CreateRequest {
    let made = plan.request;
    let text = |text: Option<String>| text.unwrap_or_default();
    let message = |value: &Value| {
        let field = |key: &str| value.get(key).and_then(Value::as_str).unwrap_or_default();
        Message::text(field("role"), field("content"))
    };
    CreateRequest {
        model: args.model.clone(),
        from: text(made.from),
        files: made.files,
        adapters: made.adapters,
        draft_files: made.draft_files,
        draft_quantize: text(args.draft_quantize.clone()),
        template: text(made.template),
        system: text(made.system),
        license: Some(License(made.license)).filter(|license| !license.0.is_empty()),
        parameters: Some(made.parameters).filter(|parameters| !parameters.is_empty()),
        messages: made.messages.iter().map(message).collect(),
        quantize: text(args.quantize.clone()),
        renderer: text(made.renderer),
        parser: text(made.parser),
        requires: text(made.requires),
        ..CreateRequest::default()
    }
}

#[cfg(test)]
mod tests {
    use puna_store::Digest;

    use super::*;

    #[test]
    fn digests_in_server_messages_become_file_names() {
        let file = |path: &str| LocalFile {
            path: path.into(),
            digest: Digest::of(path.as_bytes()),
            size: 1,
        };
        let files = [file("a/weights.gguf"), file("matrix.gguf")];
        let [weights, matrix] = [&files[0], &files[1]].map(|file| file.digest);
        let said =
            format!("{}: not an importance matrix; blob {weights} is whole", matrix.file_name());
        let named = "matrix.gguf: not an importance matrix; blob a/weights.gguf is whole";
        assert_eq!(replace_digests(&said, &files).as_deref(), Some(named));
        assert_eq!(replace_digests(&format!("blob {} is missing", Digest::of(b"x")), &files), None);
    }
}
