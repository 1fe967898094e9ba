#!/bin/sh
# cmake for a build of HDF5 whose bytes do not depend on its folder. HDF5 looks for plugins below the folder that it is
# installed into, which is one of the build here: it shall look in its usual place alone. And it has a description of its build,
# with compiler and folders, which it shows to programs that were built for another version: here there is none.
case $1 in
--build)
  description="$2/src/H5build_settings.c"
  if [ -e "$description" ]; then echo 'const char H5build_settings[] = "";' >"$description"; fi
  exec cmake "$@"
  ;;
*) exec cmake -DH5_DEFAULT_PLUGINDIR=/usr/local/hdf5/lib/plugin "$@" ;;
esac
