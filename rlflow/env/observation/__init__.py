"""The observation of an ONNX graph: what every world model sees, and all that a rule's mask is a function of.

One graph is one `GraphArrays` (rlflow/tasks/base.py) of n nodes and e edges. Its widths are fixed: nothing depends on
the graph's size, or on which model it is.

**Nodes**, in this order: the inputs of the graph (operator id `INPUT_OP`), its operators in canonical order, constant
ones among them, its outputs (`OUTPUT_OP`, in the order of the interface). Inputs and outputs have zeros for features.

`nodes`, float32 [n, NODE_FEATURES]:
  COSTS       estimated: log(1 + x) of the runtime in ns, of FLOPs and bytes; launches. No mask depends on them.
  COUNTS      constant or not; inputs, those that are given, those that are constant; outputs, those that are given,
              those that nothing reads, those that are the graph's; tensors that subgraphs read (operators.py).
  ATTRIBUTES  those that rules name, defaults filled in, on the scale of `shown` (operators.py, scales.py).
  then FINGERPRINT numbers of what these columns do not say: other attributes that are not at their default, longer
              lists, the types of outputs that nothing reads (scales.py).

**Edges**: one for every input that an operator is given, in the order of its inputs, from the node that gives the
tensor; and one into every output. A weight or literal belongs to the operator that reads it: its edge leads from that
operator to itself. So nothing depends on whether a file shares equal literals, and no literal ties distant operators
together.

`edges`, float32 [e, EDGE_FEATURES]:
  SLOTS       number of the receiver's input, number of the sender's output; whether a subgraph reads it; log(1 + nodes
              that read the tensor); whether it is an output of the graph (entries.py).
  EQUALITIES  which tensors around are the same one, which shapes and axes are equal (equalities.py).
  TENSOR      data type, rank, sizes, what is symbolic, content if it is small; FINGERPRINT numbers of what these
              columns do not say (tensors.py).

`globals`, float32 [GLOBAL_FEATURES]: runtime, FLOPs, bytes, launches and operators that are not constant, as multiples
of the initial graph's; the typical sizes of the model's symbols; its opsets (arrays.py).

Sizes are numbers: where a model has symbols, they are taken at its typical sizes, the first of them if there are
several. Beside them stands what is symbolic, which is the same at every size.

*Complete.* Two graphs with equal arrays have equal masks. What a rule may look at is either in a column of its own, on
a scale from which it can be learned, or, where it has no column or a column rounds it (a size above EXACT, the seventh
axis, an attribute that no rule names, a polynomial of symbols), in a fingerprint: so equal fingerprints mean equal
things, and a graph that every column fits has none. Large weights are not looked at by rules but for which of them are
equal: one that several operators read, or an equal one, has the fingerprint of its content on each of its edges.
`python -m benchmarks.observation` measures both: equal arrays on pairs of whole graphs that differ, and, which is what
networks need, equal matches of every rule at nodes that are alike in a neighbourhood.

*Incremental.* What a node adds to the arrays, itself and the edges into it, is an entry, kept from state to state; a
rewrite makes anew those that it touched and their readers'. Nothing is encoded before somebody asks.

VERSION (arrays.py) is the version of all this. It stands in the `EncodingSpec` of every checkpoint and in every shard
of episodes; another one is refused with one line.
"""
