//! `general.file_type`: the block format of most tensors of a model, as a number.

use std::fmt;

use puna_quant::TensorType;

use crate::error::GgufError;
use crate::file::Gguf;

/// Value of `general.file_type`. If the key is absent, the value is inferred from the tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileType {
    id: u32,
    guessed: bool,
}

/// Flag that writers set if they guessed the value.
const GUESSED: u32 = 1024;

/// Number, name, and the tensor type that most tensors of a file of this type have.
const TABLE: [(u32, &str, Option<TensorType>); 42] = {
    use TensorType::*;
    [
        (0, "F32", Some(F32)),
        (1, "F16", Some(F16)),
        (2, "Q4_0", Some(Q4_0)),
        (3, "Q4_1", Some(Q4_1)),
        (4, "Q4_1_F16", None),
        (5, "Q4_2", None),
        (6, "Q4_3", None),
        (7, "Q8_0", Some(Q8_0)),
        (8, "Q5_0", Some(Q5_0)),
        (9, "Q5_1", Some(Q5_1)),
        (10, "Q2_K", Some(Q2_K)),
        (11, "Q3_K_S", None),
        (12, "Q3_K_M", Some(Q3_K)),
        (13, "Q3_K_L", None),
        (14, "Q4_K_S", None),
        (15, "Q4_K_M", Some(Q4_K)),
        (16, "Q5_K_S", None),
        (17, "Q5_K_M", Some(Q5_K)),
        (18, "Q6_K", Some(Q6_K)),
        (19, "IQ2_XXS", Some(IQ2_XXS)),
        (20, "IQ2_XS", Some(IQ2_XS)),
        (21, "Q2_K_S", None),
        (22, "IQ3_XS", None),
        (23, "IQ3_XXS", Some(IQ3_XXS)),
        (24, "IQ1_S", Some(IQ1_S)),
        (25, "IQ4_NL", Some(IQ4_NL)),
        (26, "IQ3_S", Some(IQ3_S)),
        (27, "IQ3_M", None),
        (28, "IQ2_S", Some(IQ2_S)),
        (29, "IQ2_M", None),
        (30, "IQ4_XS", Some(IQ4_XS)),
        (31, "IQ1_M", Some(IQ1_M)),
        (32, "BF16", Some(BF16)),
        (33, "Q4_0_4_4", None),
        (34, "Q4_0_4_8", None),
        (35, "Q4_0_8_8", None),
        (36, "TQ1_0", Some(TQ1_0)),
        (37, "TQ2_0", Some(TQ2_0)),
        (38, "MXFP4_MOE", Some(MXFP4)),
        (39, "NVFP4", Some(NVFP4)),
        (40, "Q1_0", Some(Q1_0)),
        (41, "Q2_0", Some(Q2_0)),
    ]
};

impl FileType {
    /// File type of a number. Any number is valid, but not all have a name.
    pub fn from_id(id: u32) -> Self {
        FileType { id: id & !GUESSED, guessed: id & GUESSED != 0 }
    }

    /// Finds a file type by name, in any case: `q4_k_m`.
    pub fn from_name(name: &str) -> Option<Self> {
        let row = TABLE.iter().find(|row| row.1.eq_ignore_ascii_case(name))?;
        Some(FileType { id: row.0, guessed: false })
    }

    /// The number without the flag.
    pub fn id(self) -> u32 {
        self.id
    }

    /// The name, such as `Q4_K_M`, or `unknown`.
    pub fn name(self) -> &'static str {
        TABLE.get(self.id as usize).map_or("unknown", |row| row.1)
    }

    /// Whether this program or the file's writer inferred the value from the tensors.
    pub fn is_guessed(self) -> bool {
        self.guessed
    }
}

impl fmt::Display for FileType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Share of a model in one tensor type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TypeShare {
    /// The type.
    pub ty: TensorType,
    /// Number of tensors.
    pub tensors: usize,
    /// Number of values.
    pub elements: u64,
    /// Size in bytes.
    pub bytes: u64,
}

impl Gguf {
    /// `general.file_type`, or else the type that the most frequent tensor type suggests. `None`
    /// without tensors.
    pub fn file_type(&self) -> Result<Option<FileType>, GgufError> {
        if let Some(id) = self.metadata().opt_u32("general.file_type")? {
            return Ok(Some(FileType::from_id(id)));
        }
        let max = self.type_shares().into_iter().max_by_key(|share| share.tensors);
        let row = max.and_then(|max| TABLE.iter().find(|row| row.2 == Some(max.ty)));
        Ok(row.map(|row| FileType { id: row.0, guessed: true }))
    }

    /// Share of each tensor type, largest number of bytes first.
    pub fn type_shares(&self) -> Vec<TypeShare> {
        let mut shares: Vec<TypeShare> = Vec::new();
        for tensor in self.tensors() {
            let new = TypeShare { ty: tensor.ty, tensors: 0, elements: 0, bytes: 0 };
            let at = shares.iter().position(|share| share.ty == tensor.ty).unwrap_or_else(|| {
                shares.push(new);
                shares.len() - 1
            });
            let share = &mut shares[at];
            share.tensors += 1;
            share.elements = share.elements.saturating_add(tensor.elements());
            share.bytes += tensor.size;
        }
        shares.sort_by_key(|share| std::cmp::Reverse(share.bytes));
        shares
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Writer;

    #[test]
    fn ids_and_names_agree() {
        for (index, &(id, name, _)) in TABLE.iter().enumerate() {
            assert_eq!(index as u32, id);
            assert_eq!(
                (FileType::from_id(id).name(), FileType::from_name(name)),
                (name, Some(FileType::from_id(id)))
            );
        }
        assert_eq!(FileType::from_name("q4_k_m").unwrap().id(), 15);
        assert_eq!((FileType::from_id(42).name(), FileType::from_name("q9")), ("unknown", None));
        assert_eq!(
            (FileType::from_id(1024 + 7).name(), FileType::from_id(1024 + 7).is_guessed()),
            ("Q8_0", true)
        );
    }

    #[test]
    fn without_the_key_the_most_frequent_type_is_guessed() {
        let mut writer = Writer::new();
        let (row, small) = (TensorType::Q4_K.block_values() as u64, [0; 4096]);
        writer.tensor("norm", TensorType::F32, &[1024]).unwrap();
        writer
            .tensor("a", TensorType::Q4_K, &[row])
            .unwrap()
            .tensor("b", TensorType::Q4_K, &[row, 2])
            .unwrap();
        let bytes = writer.clone().to_vec([&small[..4096], &small[..144], &small[..288]]).unwrap();
        let file = Gguf::from_bytes(bytes).unwrap();
        let guess = file.file_type().unwrap().unwrap();
        assert_eq!((guess.name(), guess.is_guessed()), ("Q4_K_M", true));
        let shares: Vec<_> = file
            .type_shares()
            .iter()
            .map(|s| (s.ty.name(), s.tensors, s.elements, s.bytes))
            .collect();
        assert_eq!(shares, [("F32", 1, 1024, 4096), ("Q4_K", 2, 768, 432)]);
        writer.set("general.file_type", 7i32);
        let bytes = writer.to_vec([&small[..4096], &small[..144], &small[..288]]).unwrap();
        let said = Gguf::from_bytes(bytes).unwrap().file_type().unwrap().unwrap();
        assert_eq!((said.name(), said.is_guessed()), ("Q8_0", false));
    }
}
