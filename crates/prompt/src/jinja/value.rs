//! Values of a Jinja template, as in Python. All are immutable except namespaces, which the
//! interpreter owns.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use indexmap::IndexMap;
use serde_json::Value as Json;

use super::ast;
use crate::limits::{Budget, TemplateLimit};

/// Deepest nesting of lists and dicts, in levels. Walking or dropping a value cannot overflow the
/// stack.
pub(super) const MAX_VALUE_DEPTH: u32 = 200;
/// Longest list that `*`, `+` or `range` may create, and longest text that is iterated, in items
/// and bytes.
pub(super) const MAX_ITEMS: usize = 1 << 20;

/// Error of an operation. The interpreter adds the line.
#[derive(Debug)]
pub(super) enum EvalError {
    /// Message as in Python.
    Error(String),
    /// Message of `raise_exception`.
    Raised(String),
    Limit(TemplateLimit),
}

impl EvalError {
    /// Replaces the message of an ordinary error. Other errors stay unchanged.
    pub(super) fn with_message(self, words: impl Into<String>) -> Self {
        match self {
            EvalError::Error(_) => EvalError::Error(words.into()),
            EvalError::Raised(_) | EvalError::Limit(_) => self,
        }
    }
}

pub(super) type EvalResult<T = Value> = Result<T, EvalError>;

impl From<String> for EvalError {
    fn from(message: String) -> Self {
        EvalError::Error(message)
    }
}

impl From<&str> for EvalError {
    fn from(message: &str) -> Self {
        EvalError::Error(message.to_string())
    }
}

impl From<TemplateLimit> for EvalError {
    fn from(limit: TemplateLimit) -> Self {
        EvalError::Limit(limit)
    }
}

#[derive(Debug, Clone)]
pub(super) enum Value {
    /// An undefined value with the error message for its use.
    Undefined(Rc<str>),
    None,
    Bool(bool),
    Int(i128),
    Float(f64),
    Str(Arc<str>),
    Seq(Rc<Seq>),
    Dict(Rc<Dict>),
    Generator(Rc<Generator>),
    /// Index into the interpreter's namespaces.
    Namespace(usize),
    /// Name of a global function.
    Function(&'static str),
    /// A method bound to its value.
    Method(Rc<(Value, &'static str)>),
    Macro(Rc<MacroValue>),
    Loop(Rc<Loop>),
    Cycler(Rc<Cycler>),
    /// `joiner(sep)`: returns an empty text at the first call.
    Joiner(Rc<(Value, Cell<bool>)>),
}

/// A list, tuple, range or dictionary view.
#[derive(Debug)]
pub(super) struct Seq {
    pub(super) kind: SeqKind,
    pub(super) items: Vec<Value>,
    depth: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SeqKind {
    List,
    Tuple,
    /// `range(start, stop, step)`
    Range(i128, i128, i128),
    /// `dict_keys`, `dict_values`, `dict_items`
    View(&'static str),
}

#[derive(Debug, Default)]
pub(super) struct Dict {
    pub(super) map: IndexMap<Key, (Value, Value)>,
    depth: u32,
}

/// A dict key. Keys are equal if Python considers the values equal (`1`, `1.0`, `True`).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Key {
    None,
    Int(i128),
    Float(u64),
    Str(Arc<str>),
    Tuple(Vec<Key>),
}

/// A sequence that can be iterated once, like Python's generators.
#[derive(Debug)]
pub(super) struct Generator {
    items: RefCell<Option<Vec<Value>>>,
    depth: u32,
}

#[derive(Debug)]
pub(super) struct MacroValue {
    pub(super) def: Arc<ast::Macro>,
    /// Index of the scope in which the macro was defined.
    pub(super) scope: usize,
}

/// The `loop` variable.
#[derive(Debug)]
pub(super) struct Loop {
    pub(super) items: Rc<Vec<Value>>,
    pub(super) at: Cell<usize>,
    /// Nesting level of a recursive loop, from 0.
    pub(super) level: usize,
    /// For `loop(…)`: the statement and its outer scope.
    pub(super) recursive: Option<(Arc<ast::For>, usize)>,
    pub(super) changed: RefCell<Option<Vec<Value>>>,
    depth: u32,
}

#[derive(Debug)]
pub(super) struct Cycler {
    pub(super) items: Vec<Value>,
    pub(super) at: Cell<usize>,
    depth: u32,
}

impl Value {
    pub(super) fn str(text: impl AsRef<str>) -> Value {
        Value::Str(Arc::from(text.as_ref()))
    }

    pub(super) fn seq(kind: SeqKind, items: Vec<Value>) -> EvalResult {
        let depth = container_depth(&items)?;
        Ok(Value::Seq(Rc::new(Seq { kind, items, depth })))
    }

    pub(super) fn list(items: Vec<Value>) -> EvalResult {
        Value::seq(SeqKind::List, items)
    }

    pub(super) fn tuple(items: Vec<Value>) -> EvalResult {
        Value::seq(SeqKind::Tuple, items)
    }

    pub(super) fn generator(items: Vec<Value>) -> EvalResult {
        let depth = container_depth(&items)?;
        Ok(Value::Generator(Rc::new(Generator { items: RefCell::new(Some(items)), depth })))
    }

    pub(super) fn dict(entries: Vec<(Value, Value)>, budget: &mut Budget) -> EvalResult {
        let mut map = IndexMap::with_capacity(entries.len());
        let mut depth = 0;
        for (key, value) in entries {
            depth = depth.max(value.depth()).max(key.depth());
            // Of two equal keys, Python keeps the first key and the last value.
            match map.entry(Key::from_value(&key, budget)?) {
                indexmap::map::Entry::Occupied(mut entry) => {
                    let old: &mut (Value, Value) = entry.get_mut();
                    old.1 = value;
                }
                indexmap::map::Entry::Vacant(entry) => _ = entry.insert((key, value)),
            }
        }
        if depth >= MAX_VALUE_DEPTH {
            return Err(TemplateLimit::Depth.into());
        }
        Ok(Value::Dict(Rc::new(Dict { map, depth: depth + 1 })))
    }

    pub(super) fn cycler(items: Vec<Value>) -> EvalResult {
        let depth = container_depth(&items)?;
        Ok(Value::Cycler(Rc::new(Cycler { items, at: Cell::new(0), depth })))
    }

    /// Decodes JSON as in Python.
    pub(super) fn from_json(json: &Json) -> EvalResult {
        Ok(match json {
            Json::Null => Value::None,
            Json::Bool(b) => Value::Bool(*b),
            Json::Number(n) => match (n.as_i64(), n.as_u64()) {
                (Some(n), _) => Value::Int(n.into()),
                (_, Some(n)) => Value::Int(n.into()),
                _ => Value::Float(n.as_f64().unwrap_or(f64::NAN)),
            },
            Json::String(s) => Value::str(s),
            Json::Array(items) => {
                Value::list(items.iter().map(Value::from_json).collect::<EvalResult<_>>()?)?
            }
            Json::Object(map) => {
                let entries = map.iter().map(|(k, v)| Ok((Value::str(k), Value::from_json(v)?)));
                Value::dict(entries.collect::<EvalResult<_>>()?, &mut Budget::unlimited())?
            }
        })
    }

    fn depth(&self) -> u32 {
        match self {
            Value::Seq(s) => s.depth,
            Value::Dict(d) => d.depth,
            Value::Generator(g) => g.depth,
            Value::Method(m) => 1 + m.0.depth(),
            Value::Loop(l) => l.depth,
            Value::Cycler(c) => c.depth,
            Value::Joiner(j) => 1 + j.0.depth(),
            _ => 0,
        }
    }

    pub(super) fn is_undefined(&self) -> bool {
        matches!(self, Value::Undefined(_))
    }

    pub(super) fn is_true(&self) -> bool {
        match self {
            Value::Undefined(_) | Value::None => false,
            Value::Bool(b) => *b,
            Value::Int(n) => *n != 0,
            Value::Float(f) => *f != 0.0,
            Value::Str(s) => !s.is_empty(),
            Value::Seq(s) => !s.items.is_empty(),
            Value::Dict(d) => !d.map.is_empty(),
            _ => true,
        }
    }

    /// Name of the type in Python.
    pub(super) fn type_name(&self) -> &'static str {
        match self {
            Value::Undefined(_) => "Undefined",
            Value::None => "NoneType",
            Value::Bool(_) => "bool",
            Value::Int(_) => "int",
            Value::Float(_) => "float",
            Value::Str(_) => "str",
            Value::Seq(s) => match s.kind {
                SeqKind::List => "list",
                SeqKind::Tuple => "tuple",
                SeqKind::Range(..) => "range",
                SeqKind::View(name) => name,
            },
            Value::Dict(_) => "dict",
            Value::Generator(_) => "generator",
            Value::Namespace(_) => "Namespace",
            Value::Function(_) => "function",
            Value::Method(_) => "builtin_function_or_method",
            Value::Macro(_) => "Macro",
            Value::Loop(_) => "LoopContext",
            Value::Cycler(_) => "Cycler",
            Value::Joiner(_) => "Joiner",
        }
    }

    /// The number; booleans count as 0 and 1.
    pub(super) fn number(&self) -> Option<Number> {
        match self {
            Value::Bool(b) => Some(Number::Int((*b).into())),
            Value::Int(n) => Some(Number::Int(*n)),
            Value::Float(f) => Some(Number::Float(*f)),
            _ => None,
        }
    }

    /// The value of an integer argument.
    pub(super) fn int(&self) -> EvalResult<i128> {
        match self.number() {
            Some(Number::Int(n)) => Ok(n),
            _ => {
                Err(format!("'{}' object cannot be interpreted as an integer", self.type_name())
                    .into())
            }
        }
    }

    /// The items of an iterable value; undefined values are empty.
    pub(super) fn iterate(&self) -> EvalResult<Vec<Value>> {
        match self {
            Value::Undefined(_) => Ok(Vec::new()),
            // A string of one character takes many times the memory of the character.
            Value::Str(s) if s.len() > MAX_ITEMS => Err(TemplateLimit::Text.into()),
            Value::Str(s) => {
                Ok(s.chars().map(|c| Value::str(c.encode_utf8(&mut [0; 4]))).collect())
            }
            Value::Seq(s) => Ok(s.items.clone()),
            Value::Dict(d) => Ok(d.map.values().map(|(k, _)| k.clone()).collect()),
            Value::Generator(g) => Ok(g.items.borrow_mut().take().unwrap_or_default()),
            other => Err(format!("'{}' object is not iterable", other.type_name()).into()),
        }
    }

    /// Cost of iterating the value, in steps.
    pub(super) fn size(&self) -> usize {
        match self {
            Value::Str(s) => s.len(),
            Value::Seq(s) => s.items.len(),
            Value::Dict(d) => d.map.len(),
            Value::Generator(g) => g.items.borrow().as_ref().map_or(0, Vec::len),
            _ => 1,
        }
    }
}

fn container_depth(items: &[Value]) -> EvalResult<u32> {
    let depth = items.iter().map(Value::depth).max().unwrap_or(0);
    if depth >= MAX_VALUE_DEPTH { Err(TemplateLimit::Depth.into()) } else { Ok(depth + 1) }
}

#[derive(Debug, Clone, Copy)]
pub(super) enum Number {
    Int(i128),
    Float(f64),
}

impl Number {
    pub(super) fn float(self) -> f64 {
        match self {
            Number::Int(n) => n as f64,
            Number::Float(f) => f,
        }
    }
}

impl Key {
    /// The key of a value. Shared parts of tuples are visited at each occurrence.
    pub(super) fn from_value(value: &Value, budget: &mut Budget) -> EvalResult<Key> {
        budget.charge_steps(1)?;
        Ok(match value {
            Value::None => Key::None,
            Value::Bool(b) => Key::Int((*b).into()),
            Value::Int(n) => Key::Int(*n),
            // Whole floats equal their integers. The range keeps the conversion exact.
            Value::Float(f) if f.fract() == 0.0 && f.abs() < 1e15 => Key::Int(*f as i128),
            Value::Float(f) => Key::Float(f.to_bits()),
            Value::Str(s) => {
                budget.charge_read(s.len())?;
                Key::Str(Arc::clone(s))
            }
            Value::Seq(s) if s.kind == SeqKind::Tuple => {
                // Each item becomes a key with its own memory.
                budget.charge_steps(8 * s.items.len() as u64)?;
                Key::Tuple(
                    s.items
                        .iter()
                        .map(|item| Key::from_value(item, budget))
                        .collect::<EvalResult<_>>()?,
                )
            }
            other => return Err(format!("unhashable type: '{}'", other.type_name()).into()),
        })
    }

    /// Number of bytes that hashing the key reads.
    pub(super) fn weight(&self) -> usize {
        match self {
            Key::Str(s) => s.len(),
            Key::Tuple(keys) => keys.iter().map(|key| 16 + key.weight()).sum(),
            _ => 0,
        }
    }
}

impl Dict {
    /// The value of a key; `None` also for values that cannot be keys.
    pub(super) fn get(&self, key: &Value, budget: &mut Budget) -> EvalResult<Option<&Value>> {
        let key = match Key::from_value(key, budget) {
            Err(EvalError::Error(_)) => return Ok(None),
            key => key?,
        };
        Ok(self.map.get(&key).map(|(_, value)| value))
    }

    pub(super) fn get_str(&self, key: &str) -> Option<&Value> {
        self.map.get(&Key::Str(Arc::from(key))).map(|(_, value)| value)
    }
}

impl Loop {
    pub(super) fn new(
        items: Vec<Value>,
        level: usize,
        recursive: Option<(Arc<ast::For>, usize)>,
    ) -> EvalResult<Loop> {
        let depth = container_depth(&items)?;
        Ok(Loop {
            items: Rc::new(items),
            at: Cell::new(0),
            level,
            recursive,
            changed: RefCell::new(None),
            depth,
        })
    }
}
