//! Keywords that hold schemas.

use serde_json::{Map, Value};

use super::evaluated::Evaluated;
use super::{References, TooMuchWork, Validator, child, within};

type Object = Map<String, Value>;

impl<'a> Validator<'a> {
    /// Schemas of the same value.
    pub(super) fn in_place(
        &mut self,
        map: &'a Object,
        pointer: &str,
        value: &Value,
        evaluated: &mut Evaluated,
    ) -> Result<bool, TooMuchWork> {
        let mut is_kept = true;
        let referred = References::of(map).and_then(|reference| self.references.resolve(reference));
        if let Some((target, schema)) = referred {
            is_kept &= self.all(schema, &target, value, evaluated)?;
        }
        for (i, part) in list(map, "allOf").enumerate() {
            is_kept &=
                self.all(part, &within(pointer, "allOf", &i.to_string()), value, evaluated)?;
        }
        is_kept &= self.any_of(map, pointer, value, evaluated)?;
        is_kept &= self.one_of(map, pointer, value, evaluated)?;
        if let Some(part) = map.get("not")
            && self.tries(part, &child(pointer, "not"), value)?.is_some()
        {
            self.fail("not", pointer);
            is_kept = false;
        }
        is_kept &= self.condition(map, pointer, value, evaluated)?;
        let Value::Object(object) = value else { return Ok(is_kept) };
        for keyword in ["dependentSchemas", "dependencies"] {
            for (name, part) in named(map, keyword) {
                if !object.contains_key(name) || part.is_array() {
                    continue;
                }
                match self.tries(part, &within(pointer, keyword, name), value)? {
                    Some(more) => evaluated.add(more),
                    None => {
                        self.fail(keyword, pointer);
                        is_kept = false;
                    }
                }
            }
        }
        Ok(is_kept)
    }

    /// A schema that the value must fit as well.
    fn all(
        &mut self,
        schema: &'a Value,
        pointer: &str,
        value: &Value,
        evaluated: &mut Evaluated,
    ) -> Result<bool, TooMuchWork> {
        let checked = self.check(schema, pointer, value)?;
        Ok(checked.map(|more| evaluated.add(more)).is_some())
    }

    fn any_of(
        &mut self,
        map: &'a Object,
        pointer: &str,
        value: &Value,
        evaluated: &mut Evaluated,
    ) -> Result<bool, TooMuchWork> {
        let before = self.failures.len();
        let (mut fits, mut is_empty) = (false, true);
        for (i, part) in list(map, "anyOf").enumerate() {
            is_empty = false;
            let checked = self.check(part, &within(pointer, "anyOf", &i.to_string()), value)?;
            fits |= checked.map(|more| evaluated.add(more)).is_some();
        }
        if fits {
            self.failures.truncate(before);
        }
        Ok(fits || is_empty)
    }

    fn one_of(
        &mut self,
        map: &'a Object,
        pointer: &str,
        value: &Value,
        evaluated: &mut Evaluated,
    ) -> Result<bool, TooMuchWork> {
        let before = self.failures.len();
        let (mut fitting, mut is_empty) = (0, true);
        for (i, part) in list(map, "oneOf").enumerate() {
            is_empty = false;
            let checked = self.check(part, &within(pointer, "oneOf", &i.to_string()), value)?;
            fitting += usize::from(checked.map(|more| evaluated.add(more)).is_some());
        }
        if fitting > 0 {
            self.failures.truncate(before);
        }
        if fitting > 1 {
            self.fail("oneOf", pointer);
        }
        Ok(fitting == 1 || is_empty)
    }

    fn condition(
        &mut self,
        map: &'a Object,
        pointer: &str,
        value: &Value,
        evaluated: &mut Evaluated,
    ) -> Result<bool, TooMuchWork> {
        let Some(condition) = map.get("if") else { return Ok(true) };
        let found = self.tries(condition, &child(pointer, "if"), value)?;
        let keyword = if found.is_some() { "then" } else { "else" };
        evaluated.add(found.unwrap_or_default());
        let Some(part) = map.get(keyword) else { return Ok(true) };
        match self.tries(part, &child(pointer, keyword), value)? {
            Some(more) => {
                evaluated.add(more);
                Ok(true)
            }
            None => {
                self.fail("if", pointer);
                Ok(false)
            }
        }
    }

    /// Schemas of an object's properties and names.
    pub(super) fn object(
        &mut self,
        map: &'a Object,
        pointer: &str,
        object: &Object,
        evaluated: &mut Evaluated,
    ) -> Result<bool, TooMuchWork> {
        let mut is_kept = true;
        let declared = map.get("properties").and_then(Value::as_object);
        for (name, value) in object {
            self.step(1)?;
            let mut is_known = false;
            if let Some(part) = declared.and_then(|declared| declared.get(name)) {
                is_known = true;
                is_kept &= self.check(part, &within(pointer, "properties", name), value)?.is_some();
            }
            for (pattern, part) in named(map, "patternProperties") {
                if self.fits_pattern(pattern, name)? {
                    is_known = true;
                    let part_pointer = within(pointer, "patternProperties", pattern);
                    if self.check(part, &part_pointer, value)?.is_none() {
                        self.fail("patternProperties", pointer);
                        is_kept = false;
                    }
                }
            }
            if let (false, Some(part)) = (is_known, map.get("additionalProperties")) {
                is_known = true;
                if self.check(part, &child(pointer, "additionalProperties"), value)?.is_none() {
                    // Another pattern would have allowed it.
                    self.fail("patternProperties", pointer);
                    is_kept = false;
                }
            }
            if is_known {
                evaluated.properties.insert(name.clone());
            }
            if let Some(part) = map.get("propertyNames") {
                let name = Value::from(name.as_str());
                if self.tries(part, &child(pointer, "propertyNames"), &name)?.is_none() {
                    self.fail("propertyNames", pointer);
                    is_kept = false;
                }
            }
        }
        let Some(part) = map.get("unevaluatedProperties") else { return Ok(is_kept) };
        let part_pointer = child(pointer, "unevaluatedProperties");
        for (_, value) in object.iter().filter(|(name, _)| !evaluated.has_property(name)) {
            if self.check(part, &part_pointer, value)?.is_none() {
                self.fail("unevaluatedProperties", pointer);
                is_kept = false;
            }
        }
        evaluated.all_properties = true;
        Ok(is_kept)
    }

    /// Schemas of a list's items.
    pub(super) fn list(
        &mut self,
        map: &'a Object,
        pointer: &str,
        list: &[Value],
        evaluated: &mut Evaluated,
    ) -> Result<bool, TooMuchWork> {
        let mut is_kept = true;
        let (first, keyword) = match (map.get("prefixItems"), map.get("items")) {
            (Some(Value::Array(first)), _) => (first.as_slice(), "prefixItems"),
            (_, Some(Value::Array(first))) => (first.as_slice(), "items"),
            _ => (&[][..], "prefixItems"),
        };
        for (i, (part, value)) in first.iter().zip(list).enumerate() {
            is_kept &=
                self.check(part, &within(pointer, keyword, &i.to_string()), value)?.is_some();
        }
        evaluated.items = evaluated.items.max(first.len().min(list.len()));
        let further = match map.get("items") {
            Some(Value::Array(_)) => Some(("additionalItems", map.get("additionalItems"))),
            items => Some(("items", items)),
        };
        if let Some((keyword, Some(part))) = further {
            for value in list.iter().skip(first.len()) {
                is_kept &= self.check(part, &child(pointer, keyword), value)?.is_some();
            }
            evaluated.items = list.len();
        }
        is_kept &= self.contains(map, pointer, list, evaluated)?;
        let Some(part) = map.get("unevaluatedItems") else { return Ok(is_kept) };
        for (i, value) in list.iter().enumerate() {
            if !evaluated.has_item(i)
                && self.check(part, &child(pointer, "unevaluatedItems"), value)?.is_none()
            {
                self.fail("unevaluatedItems", pointer);
                is_kept = false;
            }
        }
        evaluated.items = list.len();
        Ok(is_kept)
    }

    fn contains(
        &mut self,
        map: &'a Object,
        pointer: &str,
        list: &[Value],
        evaluated: &mut Evaluated,
    ) -> Result<bool, TooMuchWork> {
        let Some(part) = map.get("contains") else { return Ok(true) };
        let mut found = 0;
        for (i, value) in list.iter().enumerate() {
            if self.tries(part, &child(pointer, "contains"), value)?.is_some() {
                found += 1;
                evaluated.others.insert(i);
            }
        }
        let bound = |keyword: &str| map.get(keyword).and_then(Value::as_f64);
        let is_kept = f64::from(found) >= bound("minContains").unwrap_or(1.0)
            && bound("maxContains").is_none_or(|most| f64::from(found) <= most);
        if !is_kept {
            self.fail("contains", pointer);
        }
        Ok(is_kept)
    }
}

fn list<'a>(map: &'a Object, keyword: &str) -> impl Iterator<Item = &'a Value> + use<'a> {
    map.get(keyword).and_then(Value::as_array).into_iter().flatten()
}

fn named<'a>(
    map: &'a Object,
    keyword: &str,
) -> impl Iterator<Item = (&'a String, &'a Value)> + use<'a> {
    map.get(keyword).and_then(Value::as_object).into_iter().flatten()
}
