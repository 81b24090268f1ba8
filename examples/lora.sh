#!/bin/sh
# Builds a bundle with a LoRA merged into the transformer, validates it and generates a video.
#
#   examples/lora.sh demo configs/demo lora.safetensors out/demo-lora "a red square moving left"
#
# LoRAs of PEFT, diffusers, kohya, musubi, ai-toolkit and LightX2V are read; --lora may be repeated.
set -eu
preset=$1 checkpoint=$2 lora=$3 bundle=$4 prompt=$5

vidc build "$preset" --gpu cpu --checkpoint "$checkpoint" --lora "$lora" -o "$bundle"
vidc validate "$bundle"
vidc run "$bundle" -o "$bundle.mp4" --blocks 2 --prompt "$prompt"
