// Kinds of numbers: what files call them, what they are called here, and the arrays that hold them.

export const KINDS = [
  { numpy: "|u1", safetensors: "U8", dtype: "uint8", Kind: Uint8Array },
  { numpy: "|b1", safetensors: "BOOL", dtype: "bool", Kind: Uint8Array },
  { numpy: "|i1", safetensors: "I8", dtype: "int8", Kind: Int8Array },
  { numpy: "<i2", safetensors: "I16", dtype: "int16", Kind: Int16Array },
  { numpy: "<i4", safetensors: "I32", dtype: "int32", Kind: Int32Array },
  { numpy: "<i8", safetensors: "I64", dtype: "int64", Kind: BigInt64Array },
  { numpy: "<f4", safetensors: "F32", dtype: "float32", Kind: Float32Array },
  { numpy: "<f8", safetensors: "F64", dtype: "float64", Kind: Float64Array },
];

/** The kind that `format` calls `name`. */
export const kind = (format, name) => KINDS.find((one) => one[format] === name);

/** How many numbers an array of this shape has. */
export const size = (shape) => shape.reduce((product, length) => product * length, 1);
