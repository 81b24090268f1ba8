"""AOTInductor: compiles a component to native code."""
