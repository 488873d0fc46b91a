"""The words of a report on transplants in, what each of them means out."""

DEFINITIONS = (
    "v(S): the mean over items of the log-likelihood of the label (or of being right), in the body and under the head "
    "as tuned, with the components in S as tuned and the others as before training. v(none) is the tuned body on the "
    "embeddings from before.",
    "φ: the Shapley value (Shapley 1953), a component's mean gain over all orders in which they can be tuned; "
    "exact, over all 2^n coalitions. The φ add up to v(all) - v(none).",
    "interaction: the Shapley interaction index of a pair (Grabisch and Roubens 1999).",
    "fixed coordinates: for each token of the training run the sum of word, position and segment rows is taken apart "
    "into deviations W', P', S' from the tables' means and the sum m of the means (common offset), after removal of "
    "each row's own mean over coordinates, which LayerNorm removes anyway. Offsets between tables, which no output "
    "shows, thereby move nothing.",
    "inseparable rows: [CLS] and position 0 stand with each other only, so nothing can say which of them moved; they "
    "are one component and are left out of the means.",
    "interval: 95 %, over new seeds and new items at once (random-effects, Satterthwaite's degrees of freedom), of the "
    "items' own Shapley values.",
    "share: φ over the sum; given only where the interval of the sum, over several seeds, excludes 0.",
    "reverse: the tuned components in the body from before training, under a logistic regression on standardised "
    "pooled vectors that is fitted anew to each coalition's training items; v(none) is the model from before. Its "
    "penalty is chosen once per run, by cross-validated log loss on the features of none and of all together, so that "
    "no choice counts as a component's worth. Its training items are the same for every seed: the intervals do not "
    "cover another sample of them, and values of a few ten-thousandths may rest on it.",
    "random: the component from before with each row moved as far as training moved it, in a random direction (one "
    "vector for the offset, LayerNorm's weight and bias each).",
    "rotated: all rows' moves turned by one random rotation (uniform among all; of the embeddings, among those that "
    "keep rows' means over coordinates): each row's distance, the angle between any two moves and the singular values "
    "of the change are the real ones, its directions are not. All together are turned by the same one.",
)
