//! Translation rules, and their execution on a view under construction. A rule without its source
//! has no effect. Within [`Rule::EachBlock`], `{b}` in a name is the number of the block.

use std::borrow::Cow;
use std::collections::HashSet;

use puna_quant::TensorType;

use crate::file::Gguf;
use crate::metadata::Metadata;
use crate::value::{Array, Value};

use super::Translation;

/// Upper bound on the number of blocks.
pub(super) const MAX_BLOCKS: u32 = 512;

/// A layout in which models were published.
pub(super) struct PublishedLayout {
    /// Name for display.
    pub name: &'static str,
    /// `general.architecture` of the file.
    pub architecture: &'static str,
    /// The layout matches if any marker holds.
    pub markers: &'static [Condition],
    /// Rules, applied in order.
    pub rules: &'static [Rule],
}

/// A condition on the file.
pub(super) enum Condition {
    /// The file has this key.
    Key(&'static str),
    /// The file lacks this key.
    NoKey(&'static str),
    /// The integer under this key equals the value.
    KeyIs(&'static str, u64),
    /// The integer under this key is at least the value.
    KeyAtLeast(&'static str, u64),
    /// The string under this key is absent, empty or `default`.
    NoText(&'static str),
    /// The string under this key equals the text.
    TextIs(&'static str, &'static str),
    /// The string under this key contains the text.
    TextContains(&'static str, &'static str),
    /// The token with this id has this text.
    TokenIs(usize, &'static str),
    /// The file has this tensor.
    Tensor(&'static str),
    /// The file lacks this tensor.
    NoTensor(&'static str),
    /// The file has a tensor with this name prefix.
    TensorPrefix(&'static str),
    /// The file has a tensor with this name suffix.
    TensorEnd(&'static str),
    /// Two tensors have different numbers of rows.
    RowsDiffer(&'static str, &'static str),
    /// The key is a list of single letters that decode as base64.
    IsBase64(&'static str),
    /// All conditions hold.
    All(&'static [Condition]),
    /// Any condition holds.
    Any(&'static [Condition]),
    /// Always holds: the architecture's name occurs in this layout only.
    Always,
}

/// A change of a view.
pub(super) enum Rule {
    /// Sets the architecture.
    Architecture(&'static str),
    /// Copies keys with the first prefix to the second one, unless they exist.
    KeyPrefix(&'static str, &'static str),
    /// Copies the first key to the second one, if that is absent.
    CopyKey(&'static str, &'static str),
    /// Copies the first key to the second one.
    SetKey(&'static str, &'static str),
    /// Sets the key to the sum of the integers under two others.
    SetSum(&'static str, [&'static str; 2]),
    /// Sets the key if it is absent.
    Default(&'static str, Constant),
    /// Sets the key.
    Set(&'static str, Constant),
    /// Removes the key.
    Remove(&'static str),
    /// Sets the key to a dimension of a tensor, if it is absent: key, tensor, index in its shape.
    DefaultDim(&'static str, &'static str, usize),
    /// Sets the key to a dimension of a tensor.
    SetDim(&'static str, &'static str, usize),
    /// Sets the key to a dimension of a tensor divided by the integer under another key, if it is
    /// absent: key, tensor, index, other.
    DefaultQuotient(&'static str, &'static str, usize, &'static str),
    /// Sets the key to an element of a list, if it is absent: key, list, index.
    DefaultListItem(&'static str, &'static str, usize),
    /// Sets the key to the length of a list, or zero without the list, if it is absent.
    DefaultListLen(&'static str, &'static str),
    /// Replaces a list by its largest element. If all are zero, uses the given value, or keeps the
    /// list.
    ReduceToMax(&'static str, Option<u32>),
    /// Appends a zero to a list of three numbers.
    PadSections(&'static str),
    /// Adds the first number to a list that lacks it. An absent list first gets the second number.
    AppendToList(&'static str, i32, i32),
    /// Replaces a list of single letters by the bytes that they encode in base64.
    DecodeBase64(&'static str),
    /// Sets the types of byte tokens and unused tokens.
    FixTokenTypes,
    /// Truncates a tensor to the number of rows of another one.
    TruncateRows(&'static str, &'static str),
    /// Sets the second key to the first three numbers of a list under the first key, and a zero:
    /// sections of RoPE.
    CopySections(&'static str, &'static str),
    /// Truncates tokens, scores and token types to the number of rows of this tensor. Never extends
    /// them.
    TruncateVocabulary(&'static str),
    /// Renames a tensor.
    Rename(&'static str, &'static str),
    /// Replaces the first occurrence of a text in every tensor name.
    Replace(&'static str, &'static str),
    /// Replaces a suffix of every tensor name.
    ReplaceEnd(&'static str, &'static str),
    /// Renames tensors of multi-token prediction, `mtp.`, to blocks after the others.
    RenameMtpBlocks,
    /// Removes the blocks in this list, and renumbers the others.
    SkipBlocks(&'static str),
    /// Removes tensors with this name prefix.
    Hide(&'static str),
    /// Replaces several tensors by one with their rows in order. All must exist with the same type
    /// and row length.
    Concat(&'static str, &'static [&'static str]),
    /// Replaces two tensors of the same type and shape by one: for each expert the rows of the
    /// first, then the rows of the second. No effect if the result exists.
    Interleave(&'static str, [&'static str; 2]),
    /// Applies the rules to every block, with its number for `{b}`.
    EachBlock(&'static [Rule]),
    /// Applies the rules if the condition holds.
    If(Condition, &'static [Rule]),
}

/// A value in a rule.
pub(super) enum Constant {
    U32(u32),
    F32(f32),
    Str(&'static str),
    I32s(&'static [i32]),
}

impl Constant {
    fn value(&self) -> Value {
        match self {
            Constant::U32(value) => Value::U32(*value),
            Constant::F32(value) => Value::F32(*value),
            Constant::Str(text) => Value::from(*text),
            Constant::I32s(values) => Value::from(*values),
        }
    }
}

/// A tensor of the view.
#[derive(Debug, Clone)]
pub(super) struct ViewEntry {
    pub name: Box<str>,
    pub ty: TensorType,
    pub shape: Vec<u64>,
    /// Size of the data in bytes.
    pub size: u64,
    /// Index of the source among the file's tensors. With several sources, the source with the same
    /// name.
    pub source: usize,
    /// How the data is derived, if it differs from the source's data.
    pub derived: Option<DerivedData>,
}

/// Data that differs from the file's. Sources are indices among the file's tensors.
#[derive(Debug, Clone)]
pub(super) enum DerivedData {
    /// Concatenation.
    Concat(Vec<usize>),
    /// Alternating pieces of both, with the number of pieces.
    Interleave([usize; 2], u64),
    /// One added to each value, as f32.
    AddOne(usize),
}

impl DerivedData {
    pub(super) fn data(&self, gguf: &Gguf) -> Vec<u8> {
        let data = |source: &usize| gguf.data(&gguf.tensors()[*source]);
        match self {
            DerivedData::Concat(sources) => sources.iter().map(data).collect::<Vec<_>>().concat(),
            DerivedData::Interleave([a, b], pieces) => {
                let (a, b) = (data(a), data(b));
                let piece = a.len() / *pieces as usize;
                let pairs = a.chunks(piece).zip(b.chunks(piece)).flat_map(|(a, b)| [a, b]);
                pairs.collect::<Vec<_>>().concat()
            }
            DerivedData::AddOne(source) => {
                let info = &gguf.tensors()[*source];
                let mut floats = vec![0.0f32; info.shape.iter().product::<u64>() as usize];
                puna_quant::dequantize(info.ty, data(source), &mut floats)
                    .expect("checked when it was made");
                floats.iter().flat_map(|x| (x + 1.0).to_le_bytes()).collect()
            }
        }
    }
}

/// A view under construction. Starts with the unchanged file.
pub(super) struct ViewBuilder<'g> {
    pub(super) gguf: &'g Gguf,
    pub metadata: Metadata,
    pub entries: Vec<ViewEntry>,
    /// Block number that replaces `{b}`.
    pub(super) block: String,
}

impl<'g> ViewBuilder<'g> {
    pub(super) fn new(gguf: &'g Gguf) -> Self {
        let entry = |(source, info): (usize, &crate::TensorInfo)| ViewEntry {
            name: info.name.clone(),
            ty: info.ty,
            shape: info.shape.clone(),
            size: info.size,
            source,
            derived: None,
        };
        let entries = gguf.tensors().iter().enumerate().map(entry).collect();
        ViewBuilder { gguf, metadata: gguf.metadata().clone(), entries, block: String::new() }
    }

    /// Whether the file has this layout.
    pub(super) fn matches(&self, layout: &PublishedLayout) -> bool {
        self.metadata.architecture().is_ok_and(|arch| arch == layout.architecture)
            && layout.markers.iter().any(|marker| self.holds(marker))
    }

    fn holds(&self, condition: &Condition) -> bool {
        match condition {
            Condition::Key(key) => self.metadata.contains(key),
            Condition::NoKey(key) => !self.metadata.contains(key),
            Condition::KeyIs(key, value) => self.int(key) == Some((*value).into()),
            Condition::KeyAtLeast(key, min) => {
                self.int(key).is_some_and(|value| value >= i128::from(*min))
            }
            Condition::NoText(key) => match self.metadata.get(key) {
                None => true,
                Some(value) => matches!(value.as_bytes(), Some(b"" | b"default")),
            },
            Condition::TextIs(key, text) => self
                .metadata
                .get(key)
                .is_some_and(|value| value.as_bytes() == Some(text.as_bytes())),
            Condition::TextContains(key, part) => self
                .metadata
                .get(key)
                .and_then(Value::as_str)
                .is_some_and(|text| text.contains(part)),
            Condition::TokenIs(index, text) => {
                let tokens = self.metadata.strings("tokenizer.ggml.tokens").ok().flatten();
                tokens.and_then(|mut tokens| tokens.nth(*index)) == Some(text.as_bytes())
            }
            Condition::Tensor(name) => self.entry(name).is_some(),
            Condition::NoTensor(name) => self.entry(name).is_none(),
            Condition::TensorPrefix(prefix) => self.has(|name| name.starts_with(prefix)),
            Condition::TensorEnd(end) => self.has(|name| name.ends_with(end)),
            Condition::RowsDiffer(a, b) => {
                self.dim(a, 1).zip(self.dim(b, 1)).is_some_and(|(a, b)| a != b)
            }
            Condition::IsBase64(key) => self.decode_base64_list(key).is_some(),
            Condition::All(conditions) => conditions.iter().all(|condition| self.holds(condition)),
            Condition::Any(conditions) => conditions.iter().any(|condition| self.holds(condition)),
            Condition::Always => true,
        }
    }

    /// Whether a tensor's name satisfies `matches`.
    pub(super) fn has(&self, matches: impl Fn(&str) -> bool) -> bool {
        self.entries.iter().any(|entry| matches(&entry.name))
    }

    pub(super) fn entry(&self, name: &str) -> Option<&ViewEntry> {
        let name = self.with_block(name);
        self.entries.iter().find(|entry| *entry.name == *name)
    }

    /// Replaces `{b}` in a name by the block number.
    fn with_block<'a>(&self, name: &'a str) -> Cow<'a, str> {
        if name.contains("{b}") { name.replace("{b}", &self.block).into() } else { name.into() }
    }

    pub(super) fn int(&self, key: &str) -> Option<i128> {
        self.metadata.get(key)?.as_int()
    }

    pub(super) fn dim(&self, tensor: &str, index: usize) -> Option<u32> {
        u32::try_from(*self.entry(tensor)?.shape.get(index)?).ok()
    }

    pub(super) fn apply(&mut self, rule: &Rule) {
        match rule {
            Rule::Architecture(name) => self.metadata.set("general.architecture", *name),
            Rule::KeyPrefix(from, to) => self.copy_prefix(from, to),
            Rule::CopyKey(from, to) => {
                if let Some(value) = self.metadata.get(from).cloned() {
                    self.set_default(to, value);
                }
            }
            Rule::SetKey(from, to) => {
                if let Some(value) = self.metadata.get(from).cloned() {
                    self.metadata.set(to, value);
                }
            }
            Rule::SetSum(key, parts) => {
                let parts = parts.map(|part| self.int(part));
                if let [Some(a), Some(b)] = parts
                    && let Ok(sum) = u32::try_from(a + b)
                {
                    self.metadata.set(key, sum);
                }
            }
            Rule::Default(key, constant) => self.set_default(key, constant.value()),
            Rule::Set(key, constant) => self.metadata.set(key, constant.value()),
            Rule::Remove(key) => drop(self.metadata.remove(key)),
            Rule::DefaultDim(key, tensor, index) => {
                if let Some(dim) = self.dim(tensor, *index) {
                    self.set_default(key, dim.into());
                }
            }
            Rule::SetDim(key, tensor, index) => {
                if let Some(dim) = self.dim(tensor, *index) {
                    self.metadata.set(key, dim);
                }
            }
            Rule::DefaultQuotient(key, tensor, index, by) => {
                let by = self.int(by).and_then(|by| u32::try_from(by).ok());
                if let Some(quotient) =
                    self.dim(tensor, *index).zip(by).and_then(|(dim, by)| dim.checked_div(by))
                {
                    self.set_default(key, quotient.into());
                }
            }
            Rule::DefaultListItem(key, list, index) => {
                let item = self.list(list).and_then(|list| list.get(*index)?.as_int());
                if let Some(item) = item.and_then(|item| u32::try_from(item).ok()) {
                    self.set_default(key, item.into());
                }
            }
            Rule::DefaultListLen(key, list) => {
                let len = self.list(list).map_or(0, Array::len);
                self.set_default(key, (len as u32).into());
            }
            Rule::ReduceToMax(key, without) => {
                let largest = self.list(key).and_then(|list| list.ints()?.max());
                let largest = largest.and_then(|n| u32::try_from(n).ok());
                if let Some(largest) = largest.and_then(|n| if n == 0 { *without } else { Some(n) })
                {
                    self.metadata.set(key, largest);
                }
            }
            Rule::PadSections(key) => {
                if let Ok(Some([a, b, c])) = self.metadata.i32s(key).as_ref().map(Option::as_deref)
                {
                    self.metadata.set(key, vec![*a, *b, *c, 0]);
                }
            }
            Rule::AppendToList(key, number, first) => self.append_to_list(key, *number, *first),
            Rule::DecodeBase64(key) => {
                if let Some(bytes) = self.decode_base64_list(key) {
                    self.metadata.set(key, bytes);
                }
            }
            Rule::FixTokenTypes => self.set_token_types(),
            Rule::TruncateRows(tensor, like) => {
                if let Some(rows) = self.dim(like, 1) {
                    self.truncate_rows(tensor, rows.into());
                }
            }
            Rule::CopySections(from, to) => {
                if let Ok(Some([a, b, c, ..])) =
                    self.metadata.i32s(from).as_ref().map(Option::as_deref)
                {
                    self.metadata.set(to, vec![*a, *b, *c, 0]);
                }
            }
            Rule::TruncateVocabulary(tensor) => {
                if let Some(rows) = self.dim(tensor, 1) {
                    self.truncate_vocabulary(rows as usize);
                }
            }
            Rule::Rename(from, to) => {
                let (from, to) = (self.with_block(from), self.with_block(to));
                self.rename(|name| (name == from).then(|| to.clone().into_owned()));
            }
            Rule::Replace(from, to) => {
                self.rename(|name| name.contains(from).then(|| name.replacen(from, to, 1)));
            }
            Rule::ReplaceEnd(from, to) => {
                self.rename(|name| Some(format!("{}{to}", name.strip_suffix(from)?)));
            }
            Rule::RenameMtpBlocks => self.rename_mtp_blocks(),
            Rule::SkipBlocks(list) => self.skip_blocks(list),
            Rule::Hide(prefix) => {
                let prefix = self.with_block(prefix);
                self.entries.retain(|entry| !entry.name.starts_with(&*prefix));
            }
            // Sources that do not fit stay unchanged.
            Rule::Concat(name, sources) => _ = self.concat(name, sources),
            Rule::Interleave(name, sources) => _ = self.interleave(name, sources),
            Rule::EachBlock(rules) => self.each_block(rules),
            Rule::If(condition, rules) => {
                if self.holds(condition) {
                    rules.iter().for_each(|rule| self.apply(rule));
                }
            }
        }
    }

    fn each_block(&mut self, rules: &[Rule]) {
        let key = format!("{}.block_count", self.metadata.architecture().unwrap_or_default());
        let blocks = self.metadata.opt_u32(&key).ok().flatten().unwrap_or(0).min(MAX_BLOCKS);
        for block in 0..blocks {
            self.block = block.to_string();
            rules.iter().for_each(|rule| self.apply(rule));
        }
    }

    /// Returns `None` if the sources do not fit.
    fn concat(&mut self, name: &str, sources: &[&str]) -> Option<()> {
        let found: Option<Vec<&ViewEntry>> =
            sources.iter().map(|source| self.entry(source)).collect();
        let found = found?;
        let first = *found.first()?;
        let (rows, inner) = first.shape.split_last()?;
        let fits = |entry: &&ViewEntry| {
            let same_rows = entry.shape.split_last().is_some_and(|(_, other)| other == inner);
            entry.ty == first.ty && same_rows && entry.derived.is_none()
        };
        if !found.iter().all(fits) {
            return None;
        }
        let mut shape = first.shape.clone();
        *shape.last_mut()? =
            found[1..].iter().fold(*rows, |sum, entry| sum + entry.shape[inner.len()]);
        let size = found.iter().map(|entry| entry.size).sum();
        let derived = DerivedData::Concat(found.iter().map(|entry| entry.source).collect());
        let names: Vec<_> = found.iter().map(|entry| entry.name.clone()).collect();
        self.replace(name, &names, shape, size, derived)
    }

    /// Returns `None` if the sources do not fit.
    fn interleave(&mut self, name: &str, sources: &[&str; 2]) -> Option<()> {
        let (a, b) = (self.entry(sources[0])?, self.entry(sources[1])?);
        let fits = a.ty == b.ty && a.shape == b.shape && a.derived.is_none() && b.derived.is_none();
        let [row, rows, experts] = a.shape[..] else { return None };
        if !fits || self.entry(name).is_some() {
            return None;
        }
        let derived = DerivedData::Interleave([a.source, b.source], experts);
        let (shape, size) = (vec![row, 2 * rows, experts], a.size + b.size);
        let names = [a.name.clone(), b.name.clone()];
        self.replace(name, &names, shape, size, derived)
    }

    /// Stacks several tensors of the same shape to one. Returns `None` if they do not fit.
    pub(super) fn stack(&mut self, name: &str, sources: &[String]) -> Option<()> {
        let found: Option<Vec<&ViewEntry>> =
            sources.iter().map(|source| self.entry(source)).collect();
        let found = found?;
        let first = *found.first()?;
        let fits = |entry: &&ViewEntry| {
            entry.ty == first.ty && entry.shape == first.shape && entry.derived.is_none()
        };
        if !found.iter().all(fits) {
            return None;
        }
        let mut shape = first.shape.clone();
        shape.push(found.len() as u64);
        let size = found.iter().map(|entry| entry.size).sum();
        let derived = DerivedData::Concat(found.iter().map(|entry| entry.source).collect());
        let names: Vec<_> = found.iter().map(|entry| entry.name.clone()).collect();
        self.replace(name, &names, shape, size, derived)
    }

    /// Keeps the first rows of a matrix, which are contiguous.
    fn truncate_rows(&mut self, tensor: &str, rows: u64) {
        let whole = |entry: &&mut ViewEntry| {
            *entry.name == *tensor && entry.derived.is_none() && entry.shape.len() == 2
        };
        if let Some(entry) = self.entries.iter_mut().find(whole)
            && entry.shape[1] > rows
        {
            entry.size = entry.size / entry.shape[1] * rows;
            entry.shape[1] = rows;
        }
    }

    /// Puts derived data in the place of its sources: of the one with its name, or else of the
    /// first.
    fn replace(
        &mut self,
        name: &str,
        sources: &[Box<str>],
        shape: Vec<u64>,
        size: u64,
        derived: DerivedData,
    ) -> Option<()> {
        let name = self.with_block(name).into_owned();
        let keep =
            sources.iter().find(|source| ***source == *name).unwrap_or(sources.first()?).clone();
        self.entries.retain(|entry| entry.name == keep || !sources.contains(&entry.name));
        let entry = self.entries.iter_mut().find(|entry| entry.name == keep)?;
        (entry.name, entry.shape, entry.size, entry.derived) =
            (name.into(), shape, size, Some(derived));
        Some(())
    }

    pub(super) fn list(&self, key: &str) -> Option<&Array> {
        self.metadata.get(key)?.as_array()
    }

    fn set_default(&mut self, key: &str, value: Value) {
        if !self.metadata.contains(key) {
            self.metadata.set(key, value);
        }
    }

    fn copy_prefix(&mut self, from: &str, to: &str) {
        let under =
            |key: &str| Some(format!("{to}.{}", key.strip_prefix(from)?.strip_prefix('.')?));
        let copies: Vec<_> = self
            .metadata
            .iter()
            .filter_map(|(key, value)| Some((under(key)?, value.clone())))
            .collect();
        copies.into_iter().for_each(|(key, value)| self.set_default(&key, value));
    }

    fn truncate_vocabulary(&mut self, len: usize) {
        for list in ["tokens", "scores", "token_type"] {
            let key = format!("tokenizer.ggml.{list}");
            let longer = |array: &&Array| array.len() > len;
            let cut = self
                .metadata
                .get(&key)
                .and_then(Value::as_array)
                .filter(longer)
                .map(|a| a.prefix(len));
            if let Some(array) = cut {
                self.metadata.set(&key, Value::Array(array));
            }
        }
    }

    /// Renames tensors. Skips names that another tensor has.
    pub(super) fn rename(&mut self, new_name: impl Fn(&str) -> Option<String>) {
        let mut taken: HashSet<Box<str>> =
            self.entries.iter().map(|entry| entry.name.clone()).collect();
        for entry in &mut self.entries {
            let Some(name) = new_name(&entry.name) else { continue };
            if taken.insert(name.as_str().into()) {
                taken.remove(&entry.name);
                entry.name = name.into();
            }
        }
    }

    /// Lists the changes from the file.
    pub(super) fn report(&self, layout: &'static str) -> Translation {
        let file = self.gguf.metadata();
        let keys = |wanted: &dyn Fn(&str, &Value) -> bool| {
            self.metadata.iter().filter(|(k, v)| wanted(k, v)).map(|(k, _)| k.to_owned()).collect()
        };
        let architecture = |m: &Metadata| m.architecture().unwrap_or_default().to_owned();
        let tensors = self.gguf.tensors();
        let seen: HashSet<usize> = self.entries.iter().map(|entry| entry.source).collect();
        let renamed = self.entries.iter().filter(|entry| entry.name != tensors[entry.source].name);
        let dropped = tensors.iter().enumerate().filter(|(i, _)| !seen.contains(i));
        Translation {
            layout,
            from: architecture(file),
            to: architecture(&self.metadata),
            renamed: renamed
                .map(|e| (tensors[e.source].name.to_string(), e.name.to_string()))
                .collect(),
            added: keys(&|key, _| !file.contains(key)),
            changed: keys(&|key, value| file.get(key).is_some_and(|old| old != value)),
            removed: file
                .iter()
                .filter(|(k, _)| !self.metadata.contains(k))
                .map(|(k, _)| k.to_owned())
                .collect(),
            dropped: dropped.map(|(_, tensor)| tensor.name.to_string()).collect(),
        }
    }
}
