"""What `torchgate train --help` prints; it needs no torch."""

USAGE = """usage: torchgate train [STAGE] [options]
       python -m training STAGE [options]

Both do the same. `torchgate train` without a STAGE runs the pipeline.

stages, in their order:
  prepare       decode images into the arrays of a new run
  train         train the network
  evaluate      measure it on the test images; with --log, a gateway's answers
  quantize      make the int8 variants and measure them
  export        make TorchScript graphs of all variants
  archive       put all into the model store
  pipeline      all of these in a row

  keys          new FILE makes a signing key; show FILE prints its id
  sign          sign the manifest anew, or revoke archives with --revoke
  graph         what TorchScript made of a run's model, exported and optimised
  profile       where the time of a run's graph, or of an archive's, goes
  pack          put images into tar shards, which training then streams
  bench-loader  whether reading images or the model limits training
  sweep         search the options of training for the best validation accuracy
  compare       runs side by side: options, figures, learning curves

torchgate train STAGE --help explains the options of a stage."""
