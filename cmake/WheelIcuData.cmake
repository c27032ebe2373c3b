# The library libicudata of the wheel, as the target shoal_icu_data: ICU's has 31 MB of all languages. Tokenizers
# normalize (NFC, NFD, NFKC, NFKD), match patterns and ask for properties of characters.
set(kept nfkc.nrm nfkc_cf.nrm uts46.nrm uemoji.icu ulayout.icu unames.icu)
string(REGEX MATCH "^[0-9]+" icu_major "${ICU_VERSION}")
find_program(SHOAL_ICUPKG icupkg PATHS /usr/sbin REQUIRED)  # of libicu-dev
find_library(SHOAL_ICU_DATA_ARCHIVE libicudata.a REQUIRED)
set(icu ${CMAKE_CURRENT_BINARY_DIR}/icu)
set(data kept/icudt${icu_major}l.dat)  # ICU's names of the parts begin with the file's name
file(MAKE_DIRECTORY ${icu}/kept)
list(JOIN kept "\n" lines)
file(CONFIGURE OUTPUT ${icu}/kept.txt CONTENT "${lines}\n")
add_custom_command(OUTPUT ${icu}/${data}
  COMMAND ${CMAKE_AR} p ${SHOAL_ICU_DATA_ARCHIVE} icudt${icu_major}l_dat.o > all.o
  COMMAND ${CMAKE_OBJCOPY} -O binary -j .rodata all.o icudt${icu_major}l.dat
  COMMAND ${SHOAL_ICUPKG} -x kept.txt -d . icudt${icu_major}l.dat
  COMMAND ${SHOAL_ICUPKG} -a kept.txt -s . new ${data}
  DEPENDS ${icu}/kept.txt WORKING_DIRECTORY ${icu} VERBATIM)
add_library(shoal_icu_data SHARED icu_data.c ${icu}/${data})
set_source_files_properties(icu_data.c PROPERTIES OBJECT_DEPENDS ${icu}/${data}
  COMPILE_DEFINITIONS "ENTRY=\"icudt${icu_major}_dat\";DATA=\"${icu}/${data}\"")
set_target_properties(shoal_icu_data PROPERTIES OUTPUT_NAME icudata.so.${icu_major} SUFFIX "" NO_SONAME ON
  LINK_OPTIONS -Wl,-soname,libicudata.so.${icu_major})
