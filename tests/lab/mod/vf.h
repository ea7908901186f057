/* SPDX-License-Identifier: GPL-2.0 */
/* Lab only. The virtual functions of labnv's cards, see vf.c; their mediated devices, see mdev.c. */
#ifndef LABVF_H
#define LABVF_H

#include <linux/pci.h>

int labvf_configure(struct pci_dev *card, int count);
int labvf_probe(struct pci_dev *pdev);
void labvf_remove(struct pci_dev *pdev);

int labmdev_init(void);
void labmdev_exit(void);
void labmdev_card_came(struct pci_dev *card);
void labmdev_card_goes(struct pci_dev *card);

#endif
