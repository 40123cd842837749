//! The language of translation rules, and their execution on a draft of the view. A rule whose source does not
//! exist does nothing. Within [`Rule::EachBlock`], `{b}` in a name stands for the number of the block.

use std::borrow::Cow;
use std::collections::HashSet;

use puna_quant::TensorType;

use crate::file::Gguf;
use crate::metadata::Metadata;
use crate::value::{Array, Value};

use super::Translation;

/// More blocks than any model has.
pub(super) const MAX_BLOCKS: u32 = 512;

/// One way in which models were published.
pub(super) struct Form {
    /// For people.
    pub name: &'static str,
    /// `general.architecture` of the file.
    pub architecture: &'static str,
    /// The file is in this form if any of these holds.
    pub markers: &'static [When],
    /// Applied in order.
    pub rules: &'static [Rule],
}

/// A condition on the file.
pub(super) enum When {
    /// It has this key.
    Key(&'static str),
    /// It lacks this key.
    NoKey(&'static str),
    /// The integer under this key is this.
    KeyIs(&'static str, u64),
    /// The integer under this key is at least so much.
    KeyAtLeast(&'static str, u64),
    /// The text under this key is absent, empty or `default`.
    NoText(&'static str),
    /// The text under this key is this.
    TextIs(&'static str, &'static str),
    /// The text under this key contains this.
    TextContains(&'static str, &'static str),
    /// The token of this number is this text.
    TokenIs(usize, &'static str),
    /// It has this tensor.
    Tensor(&'static str),
    /// It lacks this tensor.
    NoTensor(&'static str),
    /// It has a tensor whose name starts like this.
    TensorPrefix(&'static str),
    /// It has a tensor whose name ends like this.
    TensorEnd(&'static str),
    /// Two tensors have different numbers of rows.
    RowsDiffer(&'static str, &'static str),
    /// The key is a list of single letters that spell bytes in base64.
    Base64(&'static str),
    /// All of these hold.
    All(&'static [When]),
    /// One of these holds.
    Any(&'static [When]),
    /// Nothing more is asked: the architecture's name exists in this form only.
    Always,
}

/// One change.
pub(super) enum Rule {
    /// The architecture becomes this.
    Architecture(&'static str),
    /// Keys under the first prefix are also visible under the second; a key that is there wins.
    KeyPrefix(&'static str, &'static str),
    /// The second key gets the value of the first, if it is absent.
    CopyKey(&'static str, &'static str),
    /// The second key gets the value of the first.
    SetKey(&'static str, &'static str),
    /// The key gets the sum of the integers under two others.
    SetSum(&'static str, [&'static str; 2]),
    /// The key gets this value, if it is absent.
    Default(&'static str, Constant),
    /// The key gets this value.
    Set(&'static str, Constant),
    /// The key is invisible.
    Remove(&'static str),
    /// The key gets a dimension of a tensor, if it is absent: key, tensor, index in its shape.
    DefaultDim(&'static str, &'static str, usize),
    /// The key gets a dimension of a tensor.
    SetDim(&'static str, &'static str, usize),
    /// The key gets a dimension of a tensor over the integer under another key, if it is absent: key, tensor, index, other.
    DefaultQuotient(&'static str, &'static str, usize, &'static str),
    /// The key gets the entry of a list, if it is absent: key, list, index.
    DefaultItem(&'static str, &'static str, usize),
    /// The key gets the length of a list, zero without one, if it is absent.
    DefaultLen(&'static str, &'static str),
    /// A list becomes its largest entry; where all are zero it becomes this, or stays.
    Largest(&'static str, Option<u32>),
    /// A list of three numbers gets a zero behind them.
    FourSections(&'static str),
    /// A list gets this number, if it lacks it; an absent one begins with the other.
    Include(&'static str, i32, i32),
    /// A list of single letters becomes the bytes that they spell in base64.
    Decode(&'static str),
    /// Tokens that stand for bytes or are not used have the types that say so.
    TokenTypes,
    /// A tensor is cut to the number of rows of another.
    CutRows(&'static str, &'static str),
    /// The second key gets the first three numbers of the first, a list, and a zero: sections of a rotation.
    Sections(&'static str, &'static str),
    /// Tokens, scores and token types are cut to the number of rows of this tensor, never lengthened.
    CutVocabulary(&'static str),
    /// A tensor gets another name.
    Rename(&'static str, &'static str),
    /// In every tensor name, the first occurrence of one text becomes another.
    Replace(&'static str, &'static str),
    /// At the end of every tensor name, one text becomes another.
    ReplaceEnd(&'static str, &'static str),
    /// Tensors of multi-token prediction, `mtp.`, become blocks behind the others.
    PredictionBlocks,
    /// Blocks with the numbers of this list are invisible, and those behind them move up.
    SkipBlocks(&'static str),
    /// Tensors whose names start like this are invisible.
    Hide(&'static str),
    /// A tensor is made of the rows of others, one after the other, which become invisible. All must exist with the
    /// same type and length of rows.
    Concat(&'static str, &'static [&'static str]),
    /// A tensor is made of two of the same type and shape, which become invisible: for each expert the rows of the
    /// first, then those of the second. Nothing is done if the tensor exists.
    Interleave(&'static str, [&'static str; 2]),
    /// The rules apply to every block of the model, with its number for `{b}`.
    EachBlock(&'static [Rule]),
    /// The rules apply if the condition holds.
    If(When, &'static [Rule]),
}

/// A value in a table of rules.
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
pub(super) struct Entry {
    pub name: Box<str>,
    pub ty: TensorType,
    pub shape: Vec<u64>,
    /// Bytes of the data.
    pub size: u64,
    /// Index of the source among the tensors of the file; of the one it is named after, if there are several.
    pub source: usize,
    /// How the data is made, if it is not that of the source.
    pub make: Option<Make>,
}

/// Data that is not in the file in this order. Sources are indices among the tensors of the file.
#[derive(Debug, Clone)]
pub(super) enum Make {
    /// One after the other.
    Concat(Vec<usize>),
    /// So many pieces of each, by turns.
    Interleave([usize; 2], u64),
    /// One more than each value, as f32.
    AddOne(usize),
}

impl Make {
    pub(super) fn data(&self, gguf: &Gguf) -> Vec<u8> {
        let data = |source: &usize| gguf.data(&gguf.tensors()[*source]);
        match self {
            Make::Concat(sources) => sources.iter().map(data).collect::<Vec<_>>().concat(),
            Make::Interleave([a, b], pieces) => {
                let (a, b) = (data(a), data(b));
                let piece = a.len() / *pieces as usize;
                let pairs = a.chunks(piece).zip(b.chunks(piece)).flat_map(|(a, b)| [a, b]);
                pairs.collect::<Vec<_>>().concat()
            }
            Make::AddOne(source) => {
                let info = &gguf.tensors()[*source];
                let mut floats = vec![0.0f32; info.shape.iter().product::<u64>() as usize];
                puna_quant::dequantize(info.ty, data(source), &mut floats)
                    .expect("checked when it was made");
                floats.iter().flat_map(|x| (x + 1.0).to_le_bytes()).collect()
            }
        }
    }
}

/// A view in the making: at first the file as it is.
pub(super) struct Draft<'g> {
    pub(super) gguf: &'g Gguf,
    pub metadata: Metadata,
    pub entries: Vec<Entry>,
    /// What `{b}` stands for.
    pub(super) block: String,
}

impl<'g> Draft<'g> {
    pub(super) fn new(gguf: &'g Gguf) -> Self {
        let entry = |(source, info): (usize, &crate::TensorInfo)| Entry {
            name: info.name.clone(),
            ty: info.ty,
            shape: info.shape.clone(),
            size: info.size,
            source,
            make: None,
        };
        let entries = gguf.tensors().iter().enumerate().map(entry).collect();
        Draft { gguf, metadata: gguf.metadata().clone(), entries, block: String::new() }
    }

    /// Whether the file is in this form.
    pub(super) fn is(&self, form: &Form) -> bool {
        self.metadata.architecture().is_ok_and(|arch| arch == form.architecture)
            && form.markers.iter().any(|marker| self.holds(marker))
    }

    fn holds(&self, condition: &When) -> bool {
        match condition {
            When::Key(key) => self.metadata.contains(key),
            When::NoKey(key) => !self.metadata.contains(key),
            When::KeyIs(key, value) => self.int(key) == Some((*value).into()),
            When::KeyAtLeast(key, least) => {
                self.int(key).is_some_and(|value| value >= i128::from(*least))
            }
            When::NoText(key) => match self.metadata.get(key) {
                None => true,
                Some(value) => matches!(value.as_bytes(), Some(b"" | b"default")),
            },
            When::TextIs(key, text) => self
                .metadata
                .get(key)
                .is_some_and(|value| value.as_bytes() == Some(text.as_bytes())),
            When::TextContains(key, part) => self
                .metadata
                .get(key)
                .and_then(Value::as_str)
                .is_some_and(|text| text.contains(part)),
            When::TokenIs(index, text) => {
                let tokens = self.metadata.strings("tokenizer.ggml.tokens").ok().flatten();
                tokens.and_then(|mut tokens| tokens.nth(*index)) == Some(text.as_bytes())
            }
            When::Tensor(name) => self.entry(name).is_some(),
            When::NoTensor(name) => self.entry(name).is_none(),
            When::TensorPrefix(prefix) => self.has(|name| name.starts_with(prefix)),
            When::TensorEnd(end) => self.has(|name| name.ends_with(end)),
            When::RowsDiffer(a, b) => {
                self.dim(a, 1).zip(self.dim(b, 1)).is_some_and(|(a, b)| a != b)
            }
            When::Base64(key) => self.spelled(key).is_some(),
            When::All(conditions) => conditions.iter().all(|condition| self.holds(condition)),
            When::Any(conditions) => conditions.iter().any(|condition| self.holds(condition)),
            When::Always => true,
        }
    }

    /// Whether there is a tensor with such a name.
    pub(super) fn has(&self, such: impl Fn(&str) -> bool) -> bool {
        self.entries.iter().any(|entry| such(&entry.name))
    }

    pub(super) fn entry(&self, name: &str) -> Option<&Entry> {
        let name = self.named(name);
        self.entries.iter().find(|entry| *entry.name == *name)
    }

    /// A name with the number of the block in it.
    fn named<'a>(&self, name: &'a str) -> Cow<'a, str> {
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
            Rule::DefaultItem(key, list, index) => {
                let item = self.list(list).and_then(|list| list.get(*index)?.as_int());
                if let Some(item) = item.and_then(|item| u32::try_from(item).ok()) {
                    self.set_default(key, item.into());
                }
            }
            Rule::DefaultLen(key, list) => {
                let len = self.list(list).map_or(0, Array::len);
                self.set_default(key, (len as u32).into());
            }
            Rule::Largest(key, without) => {
                let largest = self.list(key).and_then(|list| list.ints()?.max());
                let largest = largest.and_then(|n| u32::try_from(n).ok());
                if let Some(largest) = largest.and_then(|n| if n == 0 { *without } else { Some(n) })
                {
                    self.metadata.set(key, largest);
                }
            }
            Rule::FourSections(key) => {
                if let Ok(Some([a, b, c])) = self.metadata.i32s(key).as_ref().map(Option::as_deref)
                {
                    self.metadata.set(key, vec![*a, *b, *c, 0]);
                }
            }
            Rule::Include(key, number, first) => self.include(key, *number, *first),
            Rule::Decode(key) => {
                if let Some(bytes) = self.spelled(key) {
                    self.metadata.set(key, bytes);
                }
            }
            Rule::TokenTypes => self.set_token_types(),
            Rule::CutRows(tensor, like) => {
                if let Some(rows) = self.dim(like, 1) {
                    self.cut_rows(tensor, rows.into());
                }
            }
            Rule::Sections(from, to) => {
                if let Ok(Some([a, b, c, ..])) =
                    self.metadata.i32s(from).as_ref().map(Option::as_deref)
                {
                    self.metadata.set(to, vec![*a, *b, *c, 0]);
                }
            }
            Rule::CutVocabulary(tensor) => {
                if let Some(rows) = self.dim(tensor, 1) {
                    self.cut_vocabulary(rows as usize);
                }
            }
            Rule::Rename(from, to) => {
                let (from, to) = (self.named(from), self.named(to));
                self.rename(|name| (name == from).then(|| to.clone().into_owned()));
            }
            Rule::Replace(from, to) => {
                self.rename(|name| name.contains(from).then(|| name.replacen(from, to, 1)));
            }
            Rule::ReplaceEnd(from, to) => {
                self.rename(|name| Some(format!("{}{to}", name.strip_suffix(from)?)));
            }
            Rule::PredictionBlocks => self.name_prediction_blocks(),
            Rule::SkipBlocks(list) => self.skip_blocks(list),
            Rule::Hide(prefix) => {
                let prefix = self.named(prefix);
                self.entries.retain(|entry| !entry.name.starts_with(&*prefix));
            }
            // Sources that do not fit are left as they are.
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

    /// `None` where the sources do not fit.
    fn concat(&mut self, name: &str, sources: &[&str]) -> Option<()> {
        let found: Option<Vec<&Entry>> = sources.iter().map(|source| self.entry(source)).collect();
        let found = found?;
        let first = *found.first()?;
        let (rows, inner) = first.shape.split_last()?;
        let fits = |entry: &&Entry| {
            let same_rows = entry.shape.split_last().is_some_and(|(_, other)| other == inner);
            entry.ty == first.ty && same_rows && entry.make.is_none()
        };
        if !found.iter().all(fits) {
            return None;
        }
        let mut shape = first.shape.clone();
        *shape.last_mut()? =
            found[1..].iter().fold(*rows, |sum, entry| sum + entry.shape[inner.len()]);
        let size = found.iter().map(|entry| entry.size).sum();
        let make = Make::Concat(found.iter().map(|entry| entry.source).collect());
        let names: Vec<_> = found.iter().map(|entry| entry.name.clone()).collect();
        self.replace(name, &names, shape, size, make)
    }

    /// `None` where the sources do not fit.
    fn interleave(&mut self, name: &str, sources: &[&str; 2]) -> Option<()> {
        let (a, b) = (self.entry(sources[0])?, self.entry(sources[1])?);
        let fits = a.ty == b.ty && a.shape == b.shape && a.make.is_none() && b.make.is_none();
        let [row, rows, experts] = a.shape[..] else { return None };
        if !fits || self.entry(name).is_some() {
            return None;
        }
        let make = Make::Interleave([a.source, b.source], experts);
        let (shape, size) = (vec![row, 2 * rows, experts], a.size + b.size);
        let names = [a.name.clone(), b.name.clone()];
        self.replace(name, &names, shape, size, make)
    }

    /// One tensor of several of the same shape, which become invisible; `None` where they do not fit.
    pub(super) fn stack(&mut self, name: &str, sources: &[String]) -> Option<()> {
        let found: Option<Vec<&Entry>> = sources.iter().map(|source| self.entry(source)).collect();
        let found = found?;
        let first = *found.first()?;
        let fits = |entry: &&Entry| {
            entry.ty == first.ty && entry.shape == first.shape && entry.make.is_none()
        };
        if !found.iter().all(fits) {
            return None;
        }
        let mut shape = first.shape.clone();
        shape.push(found.len() as u64);
        let size = found.iter().map(|entry| entry.size).sum();
        let make = Make::Concat(found.iter().map(|entry| entry.source).collect());
        let names: Vec<_> = found.iter().map(|entry| entry.name.clone()).collect();
        self.replace(name, &names, shape, size, make)
    }

    /// The first rows of a matrix, which lie together.
    fn cut_rows(&mut self, tensor: &str, rows: u64) {
        let whole = |entry: &&mut Entry| {
            *entry.name == *tensor && entry.make.is_none() && entry.shape.len() == 2
        };
        if let Some(entry) = self.entries.iter_mut().find(whole)
            && entry.shape[1] > rows
        {
            entry.size = entry.size / entry.shape[1] * rows;
            entry.shape[1] = rows;
        }
    }

    /// Puts a made tensor in the place of its sources: of the one with its name, else of the first.
    fn replace(
        &mut self,
        name: &str,
        sources: &[Box<str>],
        shape: Vec<u64>,
        size: u64,
        make: Make,
    ) -> Option<()> {
        let name = self.named(name).into_owned();
        let keep =
            sources.iter().find(|source| ***source == *name).unwrap_or(sources.first()?).clone();
        self.entries.retain(|entry| entry.name == keep || !sources.contains(&entry.name));
        let entry = self.entries.iter_mut().find(|entry| entry.name == keep)?;
        (entry.name, entry.shape, entry.size, entry.make) = (name.into(), shape, size, Some(make));
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

    fn cut_vocabulary(&mut self, len: usize) {
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

    /// Gives tensors other names; a name that another tensor has already is left to that one.
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

    /// What has changed from the file.
    pub(super) fn report(&self, form: &'static str) -> Translation {
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
            form,
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
