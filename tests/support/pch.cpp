// Empty: exists so that the precompiled header of the tests has a translation unit.
